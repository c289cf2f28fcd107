"""Every method by name, run on small generated data in virtual time, and what came of it, in `golden_digests.json`.

    make digests        runs them all and writes the file anew: only when a change of results is meant

The file has two parts for each run. `counts` hold on every machine: the verdict, the virtual seconds, and how many
messages and bytes of which kind were sent; so does the objective, to nine digits. `digest` covers the time and
kind of every event and the bits of every party's final state: those depend on the processor and on the numerical
libraries, which the file names, and are compared on such a machine only.
"""

import json
import math
import platform
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from threadpoolctl import threadpool_limits

from offbeat.families.table import family_of
from offbeat.jobs.methods import family_named, names_of
from offbeat.jobs.reading import job_from
from offbeat.metrics.machine import BITS_DEPEND_ON, this_machine
from offbeat.run.experiment import run_experiment

FILE = Path(__file__).with_name("golden_digests.json")
SEEDS = (0, 1)

COLUMNS = {
    "passes": 2.0,
    "data": {"set": "credit-like@0.01", "parties": ["bank", "shop", "telecom", "insurer"], "limit_rows": 240},
    "runtime": {"slow": {"shop": 4.0}},
    "optimum": False,
}
ROWS = {
    "updates": 14,
    "batch": 20,
    "model": {"row_norm": 4.0},
    "rate": {"step": 0.5, "clip": 1.0, "floor": 0.0},
    "constants": {"lag": 60, "smoothness": 0.5 * math.sqrt(17) ** 2 + 1e-4},
    "privacy": {"epsilon": 2.0, "uploads": 8},
    "data": {"set": "digits-like", "edges": 2, "limit_rows": 240},
}
MLP = {"kind": "mlp", "hidden": [8], "head_hidden": [8], "width": 4, "optimiser": "adam"}
PRIVATE = {"epsilon": 8.0, "uploads_max": 3}
FAULTS = {"runtime": {"faults": "loss", "jitter": "lognormal"}}

CASES = {
    **{name: {"algorithm": name} for name in names_of("linear")},
    "afsvrg-vp, two trees": {"algorithm": "afsvrg-vp", "secure_sum": "two-tree"},
    "vfb2-svrg, messages lost": {"algorithm": "vfb2-svrg", **FAULTS},
    "vfb2-saga, two label holders": {"algorithm": "vfb2-saga", "labels_at": ["bank", "telecom"]},
    "vfb2-saga, private labels": {"algorithm": "vfb2-saga", "label_dp_epsilon": 2.0},
    **{name: {"algorithm": name} for name in names_of("embedding")},
    **{f"{name}, networks": {"algorithm": name, "embedding": MLP} for name in names_of("embedding")},
    "vafl, private": {"algorithm": "vafl", "embedding": PRIVATE},
    "vafl, private networks": {"algorithm": "vafl", "embedding": {**MLP, **PRIVATE}},
    "vafl, messages lost": {"algorithm": "vafl", **FAULTS},
    **{name: {"algorithm": name} for name in names_of("horizontal")},
    "mapa, as printed": {"algorithm": "mapa", "privacy": {"mode": "batch-mean (paper)"}},
    "steady, messages lost": {"algorithm": "steady", **FAULTS},
}


def job_of(case, seed):
    """The case's keys over those that all cases of its kind share."""
    changes = CASES[case]
    horizontal = family_named(changes["algorithm"]) == "horizontal"
    tree = {**(ROWS if horizontal else COLUMNS), "seed": seed}
    for key, value in changes.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
    return job_from(tree)


def came_of(case, seed):
    """What the file keeps of one run."""
    with threadpool_limits(1):
        job = job_of(case, seed)
        record = run_experiment(family_of(job).load(job), job).record
    sent = Counter()
    for party in record.parties.values():
        sent.update({f"{kind}, messages": count for kind, count in party.messages_by_kind.items()})
        sent.update({f"{kind}, bytes": size for kind, size in party.bytes_by_kind.items()})
    return {
        "counts": {
            "verdict": record.verdict,
            "seconds": round(record.seconds, 9),
            "bytes_sent": {name: party.bytes_sent for name, party in record.parties.items()},
            "sent": dict(sorted(sent.items())),
        },
        "objective": record.objective,
        "digest": record.digest,
    }


def bits_of():
    """What the last bits of a result depend on."""
    machine = f"{platform.machine()} {this_machine()['cpu']}"
    return {"machine": machine, **{name: _version(name) for name in BITS_DEPEND_ON}}


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def read():
    return json.loads(FILE.read_text(encoding="utf-8"))


def main():
    runs = {f"{case} (seed {seed})": came_of(case, seed) for case in CASES for seed in SEEDS}
    FILE.write_text(json.dumps({"bits_of": bits_of(), "runs": runs}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(runs)} runs are in {FILE}; see with `git diff` what has changed.", file=sys.stderr)


if __name__ == "__main__":
    main()
