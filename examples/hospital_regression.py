"""How long will a patient stay? A hospital, a laboratory and an insurer predict the days of a stay, and explain them.

Run with `python examples/hospital_regression.py`. The data is generated.
"""

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from offbeat import PartyColumns, VerticalRegressor


def stays(rows: int) -> tuple[PartyColumns, np.ndarray]:
    rng = np.random.default_rng(0)
    age, ward = rng.integers(18, 95, rows).astype(float), rng.choice(["heart", "lung", "bone", "other"], rows)
    crp, sodium = rng.lognormal(2, 1, rows), rng.normal(140, 4, rows)
    drugs, before = rng.poisson(4, rows).astype(float), rng.poisson(0.5, rows).astype(float)
    expected = np.exp(1.0 + 0.012 * (age - 60) + 0.3 * (ward == "lung") + 0.25 * np.log(crp) + 0.2 * before)
    crp[rng.random(rows) < 0.25] = np.nan  # not measured in everybody
    tables = {
        "hospital": pd.DataFrame({"age": age, "ward": ward}),
        "laboratory": pd.DataFrame({"crp": crp, "sodium": sodium}),
        "insurer": pd.DataFrame({"drugs": drugs, "stays before": before}),
    }
    return PartyColumns(tables), rng.gamma(4.0, expected / 4.0) + 0.1


def main() -> None:
    X, X_test, y, y_test = train_test_split(*stays(3000), test_size=0.3, random_state=0)
    model = VerticalRegressor(loss="gamma", prepare={"laboratory": "bins"}, penalty=1e-3, target=1e-6).fit(X, y)
    days = model.predict(X_test)
    print(f"Mean absolute error {np.mean(np.abs(days - y_test)):.2f} days; the mean stay would give", end=" ")
    print(f"{np.mean(np.abs(y.mean() - y_test)):.2f}. Certificate {model.certificate_.duality_gap:.1e}.")

    print("Days are multiplied by, for one deviation of a number, or for a category or bin:")
    for party, coefficients in model.coefficients_.items():
        largest = sorted(coefficients.items(), key=lambda one: -abs(one[1]))[:3]
        print(f"  {party}: " + ", ".join(f"{name} x{np.exp(value):.2f}" for name, value in largest))

    told = model.explain(X_test)
    print(f"The first patient, {days[0]:.1f} days: {np.exp(told.base):.1f} in general,", end=" ")
    print(", ".join(f"x{np.exp(part[0]):.2f} by the {party}" for party, part in told.parts.items()))

    pipeline = model.to_sklearn()  # for the hospital, if it may hold all columns later
    together = pd.concat([X_test[party] for party in X_test], axis=1)
    apart = np.abs(pipeline.predict(together) - days).max()
    print(f"The same as a scikit-learn pipeline: at most {apart:.0e} days apart.")


if __name__ == "__main__":
    main()
