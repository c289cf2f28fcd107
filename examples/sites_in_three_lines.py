"""One model from rows at three hospitals: without noise, and with an epsilon at each of them.

Run with `python examples/sites_in_three_lines.py`. The data is generated.
"""

import numpy as np
import pandas as pd

from offbeat import HorizontalClassifier

ROWS = 6000
RANGES = {"age": (0, 120), "weight": (20, 250), "visits": (0, 30)}  # known without looking at anybody's rows
rng = np.random.default_rng(0)
patients = pd.DataFrame({"age": rng.uniform(18, 95, ROWS), "weight": rng.normal(80, 15, ROWS)})
patients["visits"] = rng.poisson(4, ROWS)
patients["hospital"] = rng.choice(["oslo", "porto", "turin"], ROWS)
risk = (patients.age - 55) / 15 + (patients.weight - 80) / 15 + patients.visits - 4
again = np.where(risk + rng.logistic(size=ROWS) > 0, "comes again", "does not")
known = np.arange(ROWS) < 5000


def tell(epsilon: float | None) -> None:
    model = HorizontalClassifier(sites="hospital", epsilon=epsilon, ranges=RANGES, updates=600)
    model.fit(patients[known], again[known])
    spent = {site: model.privacy_[site].get("epsilon") for site in model.sites_}
    words = "no noise" if epsilon is None else ", ".join(f"{site} spent {value:.2f}" for site, value in spent.items())
    print(f"accuracy on {np.sum(~known)} unseen rows {model.score(patients[~known], again[~known]):.3f}: {words}")


if __name__ == "__main__":
    for epsilon in (None, 3.0, 1.0):
        tell(epsilon)
