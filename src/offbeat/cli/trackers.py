"""A finished run for TensorBoard and MLflow: its curve as scalars by look, its results as scalars at the end.

    tensorboard   an event file, written here: a record is a length, data, and a checksum of each; the data is one
                  protobuf message, an Event with a Summary of one scalar
    mlflow        the package's own client, to wherever MLFLOW_TRACKING_URI says

Neither gets the parties' entries of the job: paths and names of columns are the owner's.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.errors import NotInstalled
from offbeat.metrics.plain import replace_file
from offbeat.metrics.record import RECORD_FILE, RunRecord

EXPERIMENT = "offbeat"
EVENTS_FILE = "events.out.tfevents.0.offbeat"
TEXT_MOST = 500  # of a parameter or a tag, in characters
MEASURED = ("passes", "bytes", "objective", "gradient_norm", "gap", "suboptimality", "test_metric")


class Scalar(NamedTuple):
    """One number at one look."""

    tag: str
    look: int
    time_s: float
    value: float


def scalars(record: RunRecord) -> Iterator[Scalar]:
    """What was measured on the way, and at the end what the run came to."""
    for look, row in enumerate(record.curve):
        yield from _finite(look, row.time_s, {f"curve/{name}": getattr(row, name) for name in MEASURED})
    end = {f"result/{name}": value for name, value in record.metrics.items()}
    end |= {"result/objective": record.objective, "result/seconds": record.seconds, "result/passes": record.passes}
    end |= {"result/duality_gap": record.certificate.duality_gap}
    for name, party in record.parties.items():
        end |= {f"{name}/updates": party.updates, f"{name}/lag_mean": party.lag_mean, f"{name}/bytes": party.bytes_sent}
    yield from _finite(max(len(record.curve) - 1, 0), record.seconds, end)


def _finite(look: int, time_s: float, values: Mapping[str, float | None]) -> Iterator[Scalar]:
    for tag, value in values.items():
        if value is not None and isfinite(value):
            yield Scalar(tag, look, time_s, float(value))


def began_s(folder: Path, record: RunRecord) -> float:
    """When the run began, in seconds since 1970, as near as its folder tells."""
    return (folder / RECORD_FILE).stat().st_mtime - record.seconds


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def to_tensorboard(folder: Path, record: RunRecord, out: Path) -> Path:
    """Write `out`/RUN with one event file, which replaces that of an earlier export."""
    began = began_s(folder, record)
    events = [_event(began, _text(3, "brain.Event:2"))]
    for tag, look, time_s, value in scalars(record):
        named = _text(1, tag) + _key(2, 5) + struct.pack("<f", value)
        events.append(_event(began + time_s, _key(2, 0) + _varint(look) + _bytes(5, _bytes(1, named))))
    place = out / folder.resolve().name
    replace_file(place / EVENTS_FILE, b"".join(map(_record, events)))
    return place


def _event(time_s: float, rest: bytes) -> bytes:
    return _key(1, 1) + struct.pack("<d", time_s) + rest


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _bytes(field, content.encode())


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = tuple(map(_crc_of_byte, range(256)))


def _masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli), turned by 15 bits and shifted by a constant, as records of this form want it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# -- MLflow ----------------------------------------------------------------------------------------------------------


def to_mlflow(folder: Path, record: RunRecord) -> str:
    """A run of the experiment that MLFLOW_EXPERIMENT_NAME names, or `offbeat`; returns its id."""
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise NotInstalled("--to mlflow needs the package mlflow: pip install 'offbeat[mlflow]'.") from None
    client = MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    began = began_s(folder, record)
    run = client.create_run(experiment, start_time=_ms(began), run_name=folder.resolve().name).info.run_id
    metrics = [Metric(tag, value, _ms(began + time_s), look) for tag, look, time_s, value in scalars(record)]
    for first in range(0, len(metrics), 1000):  # a request holds 1,000 metrics, 100 parameters and 100 tags
        client.log_batch(run, metrics=metrics[first : first + 1000])
    params = [Param(key, value) for key, value in parameters(record.options).items()]
    for first in range(0, len(params), 100):
        client.log_batch(run, params=params[first : first + 100])
    client.log_batch(run, tags=[RunTag(key, value) for key, value in tags(record).items()])
    client.set_terminated(run, "FINISHED" if record.exit_code == 0 else "FAILED", _ms(began + record.seconds))
    return str(run)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def parameters(options: Mapping[str, Any], under: str = "") -> dict[str, str]:
    """The job with dots in its keys, less the parties' own entries and what was left out."""
    found: dict[str, str] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= parameters(value, f"{under}{key}.")
        elif value is not None and f"{under}{key}" not in ("party", "data.dir"):
            found[f"{under}{key}"] = str(value)[:TEXT_MOST]
    return found


def tags(record: RunRecord) -> dict[str, str]:
    """What is said of a run in words."""
    found = {"verdict": record.verdict, "reason": record.reason, "digest": record.digest, "clock": record.clock}
    found |= {"offbeat": record.offbeat, "data": record.data.source, "runtime": record.runtime}
    found |= {f"promise.{number}": text for number, text in enumerate(record.promises, 1)}
    found |= {f"warning.{number}": text for number, text in enumerate(record.warnings, 1)}
    return {f"offbeat.{key}": value[:TEXT_MOST] for key, value in found.items() if value}
