"""Does asynchrony pay? One party grows slower; a method and its synchronous twin race to the same target.

    python examples/async_against_sync.py

Virtual time and one seed: differences below some 15 % (with plain stochastic gradients, 40 %) mean nothing. Look at the
line without a slow party first: there nobody has to be waited for, and the shorter steps that old products need cost
something. Where every party's columns matter, the slow party's block must converge by itself, and the gain stays small.
"""

from offbeat import load_data, run_experiment
from offbeat.jobs.reading import job_from
from offbeat.metrics.curves import to_target

TARGET = 10**-2.5
PAIRS = (("afsgd-vp", "fsgd-vp"), ("afsaga-vp", "fsaga-vp"))


def main() -> None:
    print(f"virtual seconds until the objective is within {TARGET:.4f} of the optimum")
    print(f"{'method':>10}  {'slow party':>10}  {'async':>6}  {'sync':>6}  speed-up")
    for asynchronous, synchronous in PAIRS:
        for slowness in (1.0, 4.0):
            ours, theirs = seconds(asynchronous, slowness), seconds(synchronous, slowness)
            print(f"{asynchronous:>10}  {slowness:>9g}x  {ours:>6.2f}  {theirs:>6.2f}  {theirs / ours:.2f}")


def seconds(algorithm: str, slowness: float) -> float:
    job = job_from(
        {
            "algorithm": algorithm,
            "passes": 12,
            "intercept": False,
            "data": {
                "set": "credit-like@0.2",
                "parties": ["bank", "shop", "telecom", "insurer"],
                "split_after_one_hot": True,
            },
            "runtime": {"slow": {"shop": slowness}, "lanes": 2},
        }
    )
    reached = to_target(run_experiment(load_data(job), job).record.curve, TARGET)
    return float("nan") if reached is None else reached


if __name__ == "__main__":
    main()
