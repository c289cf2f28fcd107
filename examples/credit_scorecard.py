"""A credit scorecard of a bank, a telecom and a shop: points by bin, what they are worth, and whether they still hold.

Run with `python examples/credit_scorecard.py`. The data is generated.
"""

import numpy as np
import pandas as pd

from offbeat import VerticalClassifier


def customers(rows: int, seed: int, shift: float = 0.0) -> tuple[dict[str, pd.DataFrame], np.ndarray]:
    """Columns by party and who defaulted. `shift`: by how much late payments have grown since."""
    rng = np.random.default_rng(seed)
    income, age = rng.lognormal(10, 0.6, rows), rng.integers(18, 80, rows).astype(float)
    used, late = rng.beta(2, 3, rows), rng.poisson(0.6 + shift, rows).astype(float)
    months, returns = (
        rng.integers(1, 120, rows).astype(float),
        rng.choice(["few", "some", "many"], rows, p=[0.6, 0.3, 0.1]),
    )
    risk = -3 - 0.8 * (np.log(income) - 10) + 3 * (used > 0.7) + 0.7 * late - 0.01 * months + 0.9 * (returns == "many")
    income[rng.random(rows) < 0.15] = np.nan  # not everybody tells it
    default = np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no")
    bank = pd.DataFrame({"income": income, "age": age, "used": used})
    telecom = pd.DataFrame({"late payments": late, "months": months})
    return {"bank": bank, "telecom": telecom, "shop": pd.DataFrame({"returns": returns})}, default


def main() -> None:
    tables, default = customers(4000, seed=0)
    bins = {"how": "bins", "bins": 5}
    prepare = {  # more income never means a higher chance of default, nor do fewer late payments
        "bank": {**bins, "columns": {"income": "falling"}},
        "telecom": {**bins, "columns": {"late payments": "rising"}},
        "shop": bins,
    }
    model = VerticalClassifier(prepare=prepare, penalty=1e-3, target=1e-5).fit(tables, default)
    card = model.scorecard(tables, default, points=600, odds=50, double=20)
    print(card)

    one = {party: table.iloc[:1] for party, table in tables.items()}
    parts = model.explain(one).parts
    print(f"\nThe first customer has {card.score(one)[0]:.0f} points. Parts of the log odds of a default:")
    print("  " + ", ".join(f"{party} {float(part[0]):+.2f}" for party, part in parts.items()))

    later, _ = customers(2000, seed=1, shift=0.6)
    moved = card.stability(later)
    print("A year later, stability (below 0.1 stable, above 0.25 shifted):")
    for party, values in moved.items():
        print(f"  {party}: " + ", ".join(f"{name} {value:.2f}" for name, value in values.items()))


if __name__ == "__main__":
    main()
