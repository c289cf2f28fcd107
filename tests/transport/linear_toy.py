"""A small credit-like problem for real parties in separate processes, with a centralised answer to compare with."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.data.fitting import fit_preparation
from offbeat.data.prepare import Preparation
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgModel, OrgNetwork
from offbeat.learning.central import optimum
from offbeat.learning.losses import LOGISTIC
from offbeat.message.codec import Codec
from offbeat.orgs.guards import Guarded, WatchedRows
from offbeat.orgs.rows import OwnRows
from offbeat.orgs.train import OwnLinear
from offbeat.party.contract import Message
from offbeat.party.masked_sum import ShareGiven
from offbeat.runtime.eventlog import LogReceived, read_log
from offbeat.runtime.recovery import log_path, recover

STRENGTH = 1e-2


def tables(spec: Mapping[str, Any]) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(spec.get("seed", 0))
    rows, widths = spec["rows"], spec["widths"]
    blocks = [rng.standard_normal((rows, width)) for width in widths]
    true = [rng.standard_normal(width) / np.sqrt(sum(widths)) for width in widths]
    z = sum(block @ w for block, w in zip(blocks, true, strict=True))
    return blocks, np.where(rng.random(rows) < 1 / (1 + np.exp(-2 * z)), 1.0, -1.0)


def job_of(spec: Mapping[str, Any]) -> OrgJob:
    return OrgJob(
        name="toy",
        parties=tuple(spec["names"]),
        labels_at=tuple(spec.get("labels_at", spec["names"][:1])),
        method=OrgMethod(**{"algorithm": "vfb2-svrg", **spec.get("method", {})}),
        model=OrgModel(strength=STRENGTH, intercept=False),
        network=OrgNetwork(on_loss=spec.get("on_loss", "wait")),
    )


def build(spec: Mapping[str, Any], name: str) -> tuple[Guarded, tuple[type[Message], ...]]:
    """The factory: one guarded party."""
    blocks, labels = tables(spec)
    job, place = job_of(spec), list(spec["names"]).index(name)
    tokens = tuple(row.to_bytes(16, "big") for row in range(len(labels)))
    columns = tuple(f"{name}-{i}" for i in range(blocks[place].shape[1]))
    own = OwnRows(
        train=blocks[place],
        test=blocks[place][:0],
        tokens_train=tokens,
        tokens_test=(),
        y_train=labels if name in job.labels_at else None,
        y_test=None,
        classes=None,
        fitted=fit_preparation(blocks[place], columns, Preparation(how="none")),
        notes=(),
    )
    watched = WatchedRows(name, tokens, reserve=lambda needed: needed)
    made = OwnLinear(job, own, watched, run="toy", secret=name.encode().ljust(32, b"."))
    return made.party, made.messages


def scores(parties: Iterable[Guarded], spec: Mapping[str, Any]) -> np.ndarray:
    blocks, _ = tables(spec)
    weights = [party.inner.block.weights()[0, :-1] for party in parties]  # type: ignore[attr-defined]
    return np.asarray(sum(block @ w for block, w in zip(blocks, weights, strict=True)))


def pooled_scores(spec: Mapping[str, Any]) -> np.ndarray:
    blocks, labels = tables(spec)
    pooled = np.hstack(blocks)
    return np.asarray(pooled @ optimum(pooled, labels, LOGISTIC, STRENGTH, tolerance=1e-11)[0])


def check_logs(spec: Mapping[str, Any], folder: Path, digests: str) -> None:
    """Nothing was applied twice and no mask served twice: read from the logs of what really arrived.

    Every party replays from the first event to the digest of the living one; every sender's messages are numbered
    without gap or repetition; mask words of one asker and answerer are never used for two different requests.
    """
    for name in spec["names"]:
        party, messages = build(spec, name)
        replayed = recover(party, Codec(messages), folder, from_start=True)
        assert replayed.drive.digest.hex() in digests, f"{name} does not replay to the same bits"
        codec = Codec(messages)
        numbers: dict[str, int] = {}
        given: dict[tuple[str, int, int, int, int], bytes] = {}
        for _, record in read_log(log_path(folder, name)):
            if not isinstance(record, LogReceived):
                continue
            assert record.number == numbers.get(record.sender, 0) + 1, f"{name} got {record.number} of {record.sender}"
            numbers[record.sender] = record.number
            body = codec.decode(record.frame)
            if isinstance(body, ShareGiven):
                key = (record.sender, body.epoch, body.kind, body.survey, body.first)
                assert given.setdefault(key, body.words.tobytes()) == body.words.tobytes(), f"a mask was reused: {key}"
