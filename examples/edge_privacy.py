"""A privacy budget that is kept: three edge sites train one model, each within its own epsilon.

    python examples/edge_privacy.py

Noise is calibrated so that the whole run of an edge stays within (epsilon, delta). Each edge's ledger counts its own
uploads and refuses the one that would pass the budget; the others go on. A smaller epsilon costs accuracy: compare.
"""

from sklearn.datasets import load_digits

from offbeat.data.horizontal import horizontal_from_arrays
from offbeat.jobs.horizontal import edge_job_from
from offbeat.run.experiment import run_experiment
from offbeat.run.result import Result


def main() -> None:
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    data = horizontal_from_arrays(x[:1500], y[:1500], x[1500:], y[1500:], edges=3, source="scikit-learn's digits")
    print(f"three edges with {', '.join(map(str, data.rows.values()))} rows of digits; each pays from its own budget")
    for epsilon in (None, 8.0, 2.0):
        privacy = {"mode": "none"} if epsilon is None else {"epsilon": epsilon, "delta": 1e-4, "uploads": 60}
        job = edge_job_from(
            {
                "algorithm": "steady",
                "updates": 200,
                "batch": 100,
                "seed": 0,
                "model": {"kind": "softmax", "features": 64, "classes": 10},
                "rate": {"clip": 1.0, "step": 2.0},
                "privacy": privacy,
            }
        )
        tell(epsilon, run_experiment(data, job))


def tell(epsilon: float | None, result: Result) -> None:
    name = "no noise" if epsilon is None else f"at most {epsilon:g}"
    accuracy = result.record.metrics["test_accuracy_averaged"]
    print(f"epsilon {name:>9}: test accuracy {accuracy:.3f}; {result.record.verdict}: {result.record.reason}")
    for edge, stated in result.record.privacy.items():
        spent = "-" if stated["epsilon"] is None else f"{stated['epsilon']:.2f}"
        print(f"   {edge}: {stated['releases']} uploads, epsilon spent {spent}")


if __name__ == "__main__":
    main()
