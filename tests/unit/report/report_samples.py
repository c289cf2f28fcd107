"""Invented but realistic run records, the same on every call, for tests of everything a person reads."""

import math
from io import StringIO

import numpy as np
from rich.console import Console

from offbeat.metrics.curves import CurveRow
from offbeat.metrics.lag import Lags
from offbeat.metrics.record import Certificate, DataRecord, PartyRecord, Reveal, RunRecord, Transit
from offbeat.randomness import stream

PARTIES = ("bank", "shop", "telecom", "insurer")
KINDS = ("ShareAsked", "MaskedShare", "SnapshotTable", "Ready")
SLOW = "shop"

REVEALS = (
    Reveal("ShareAsked", 18_412, 441_888, "which rows a worker works on, to every party"),
    Reveal("MaskedShare", 55_236, 28_722_720, "nothing by itself; the sum of all shares, to the asker alone"),
    Reveal(
        "SnapshotTable",
        12,
        2_304_000,
        "one derivative per row, to every party; for logistic loss its sign is the label",
    ),
    Reveal("Ready", 48, 1_152, "that a party has finished its snapshot, to every party"),
)


def sample_record(**changes):
    """AFSVRG-VP over four parties in the simulator, one of them four times slower."""
    fields = {
        "offbeat": "0.1.0",
        "algorithm": "afsvrg-vp",
        "runtime": "simulator",
        "clock": "virtual",
        "seed": 7,
        "digest": "9f2c61d07a4be8835d1f0ac2b7e94c1133a85d60f7be24c9a1d0e6587c3b42f1",
        "verdict": "target",
        "reason": "The certificate fell below the target of 1e-06 after 12.5 passes.",
        "objective": 0.431772915,
        "certificate": Certificate(gradient_norm=1.35e-5, duality_gap=9.11e-7),
        "suboptimality": 2.4e-8,
        "passes": 12.5,
        "seconds": 48.25,
        "metrics": {"test_auc": 0.7731, "test_accuracy": 0.8204},
        "parties": {name: sample_party(name) for name in PARTIES},
        "reveals": REVEALS,
        "warnings": (
            "The derivative that every party receives discloses the labels of the rows it was taken at.",
            "Masks are seeded: for experiments only.",
        ),
        "options": {
            "algorithm": "afsvrg-vp",
            "penalty": 1e-4,
            "secure_sum": "pairwise",
            "in_flight": 4,
            "slow": {"shop": 4.0},
        },
        "data": DataRecord(
            source="UCI credit-card default, 30,000 clients; one-hot and standardised by each party.",
            rows=24_000,
            test_rows=6_000,
            columns={"bank": 23, "shop": 23, "telecom": 23, "insurer": 22},
            notes=("35 duplicate rows dropped",),
        ),
        "versions": {"python": "3.11.7", "numpy": "2.4.6"},
        "machine": {"cpu": "a processor", "cores": 2},
        "curve": sample_curve(),
        "timeline": sample_timeline(),
    }
    return RunRecord(**{**fields, **changes})


def sample_party(name):
    slow = name == SLOW
    drawn = stream(5, name).poisson(3 if slow else 11, size=1_200 if slow else 4_800)
    lags = Lags.counted(np.bincount(drawn).tolist())
    compute_s, communicate_s = (41.2, 5.9) if slow else (35.4, 11.7)
    return PartyRecord(
        updates=lags.number,
        lag_mean=round(lags.mean, 4),
        lag_max=lags.most,
        lag_histogram=lags.histogram,
        bytes_sent=7_867_440,
        bytes_by_kind={"ShareAsked": 110_472, "MaskedShare": 7_180_680, "SnapshotTable": 576_000, "Ready": 288},
        messages_by_kind={"ShareAsked": 4_603, "MaskedShare": 13_809, "SnapshotTable": 3, "Ready": 12},
        compute_s=compute_s,
        communicate_s=communicate_s,
        wait_s=round(48.25 - compute_s - communicate_s, 3),
        dropped=3 if slow else 0,
        retried=1,
    )


def sample_curve(looks=100, rate=0.17):
    """Sub-optimality falls geometrically; the bound stays about 30 times above it."""
    return tuple(
        CurveRow(
            time_s=48.25 * look / looks,
            passes=look / 8,
            bytes=31_469_760 * look // looks,
            objective=0.431772891 + 0.2613 * math.exp(-rate * look),
            gradient_norm=0.09 * math.exp(-0.09 * look),
            gap=0.4 * math.exp(-rate * 0.78 * look) if look % 4 == 0 else None,
            suboptimality=0.2613 * math.exp(-rate * look),
            test_metric=0.7731 - 0.27 * math.exp(-0.2 * look),
        )
        for look in range(looks + 1)
    )


def sample_timeline(messages=640, parties=PARTIES):
    rng = stream(11, "timeline")
    rows, now = [], 0.0
    for number in range(messages):
        now += float(rng.exponential(0.0011))
        sender, receiver = rng.choice(len(parties), size=2, replace=False)
        kind = KINDS[int(rng.choice(4, p=(0.3, 0.64, 0.03, 0.03)))]
        delay_s = 0.002 + float(rng.exponential(0.001)) * (4 if parties[sender] == SLOW else 1)
        lost = number % 97 == 96
        rows.append(Transit(now, None if lost else now + delay_s, parties[sender], parties[receiver], kind))
    return tuple(rows)


def synchronous_record():
    """The same problem with a barrier: slower, and everyone waits for the slow party."""
    waits = {
        name: PartyRecord(
            updates=1_200,
            lag_histogram=(1_200,),
            bytes_sent=7_867_440,
            compute_s=70.0 if name == SLOW else 17.5,
            communicate_s=11.0,
            wait_s=12.0 if name == SLOW else 64.5,
        )
        for name in PARTIES
    }
    slower = tuple(
        CurveRow(time_s=93.0 / 48.25 * row.time_s, passes=row.passes, bytes=row.bytes, objective=row.objective,
                 suboptimality=row.suboptimality, gap=row.gap, test_metric=row.test_metric)
        for row in sample_curve(rate=0.15)
    )  # fmt: skip
    return sample_record(algorithm="fsvrg-vp", seconds=93.0, parties=waits, curve=slower, digest="07" * 32)


def hostile_record():
    """Names and texts that would break a page which did not escape them."""
    evil = '<script>alert("x")</script>'
    return sample_record(
        algorithm=evil,
        reason=f"stopped by {evil} & 'quotes'",
        warnings=(evil,),
        parties={evil: sample_party("bank"), '"><img src=x onerror=alert(1)>': sample_party("shop")},
        reveals=(Reveal(evil, 1, 1, evil),),
        options={evil: [evil, {"</script>": "<!--"}]},
        timeline=(Transit(0.0, 0.1, evil, '"><img src=x onerror=alert(1)>', evil),),
    )


def plain_text(shown, width=100):
    """What a terminal of this width shows."""
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(shown)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"
