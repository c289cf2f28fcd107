"""Which model: classes, counts over years, labels far off, exact zeros. Three parties, beside pooled scikit-learn.

Run with `python examples/choose_a_model.py`. The data is generated.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from offbeat import VerticalClassifier, VerticalRegressor

ROWS, PENALTY = 500, 1e-2
rng = np.random.default_rng(0)
blocks = {name: rng.normal(size=(ROWS, 3)) for name in ("bank", "shop", "telecom")}
pooled = np.hstack(list(blocks.values()))


def several_classes() -> None:
    scores = pooled @ rng.normal(size=(9, 4)) + rng.gumbel(size=(ROWS, 4))
    kind = np.array(["cash", "card", "loan", "none"])[scores.argmax(axis=1)]
    model = VerticalClassifier(penalty=PENALTY, target=1e-8, prepare="none").fit(blocks, kind)
    theirs = LogisticRegression(C=1 / (ROWS * PENALTY), tol=1e-10, max_iter=1000).fit(pooled, kind)
    apart = np.abs(model.predict_proba(blocks) - theirs.predict_proba(pooled)).max()
    print(f"Classes {', '.join(model.classes_)}: certificate {model.certificate_.duality_gap:.1e},")
    print(f"  probabilities at most {apart:.0e} from those of scikit-learn.")


def counts_over_years() -> None:
    years = rng.uniform(0.5, 3.0, ROWS)
    claims = rng.poisson(years * np.exp(pooled @ (0.3 * rng.normal(size=9)) - 0.5))
    model = VerticalRegressor(loss="poisson", penalty=PENALTY, target=1e-8, prepare="none")
    model.fit(blocks, claims, exposure=years)
    theirs = PoissonRegressor(alpha=PENALTY, tol=1e-10, max_iter=1000).fit(pooled, claims / years, years)
    apart = np.abs(model.predict(blocks) / theirs.predict(pooled) - 1).max()
    print(f"Claims a year: certificate {model.certificate_.duality_gap:.1e}, rates at most {apart:.0e} apart.")


def far_labels() -> None:
    price = pooled @ np.arange(1.0, 10.0) + rng.normal(size=ROWS) + 500.0 * (rng.random(ROWS) < 0.05)
    for loss in ({"loss": "squared"}, {"loss": "huber", "huber_delta": 1.35}):
        model = VerticalRegressor(penalty=1e-4, prepare="none", **loss).fit(blocks, price)
        off = np.abs(np.concatenate(list(model.coef_.values())) - np.arange(1.0, 10.0)).max()
        print(f"One label in twenty is far off, {model.loss}: coefficients at most {off:.2g} from the true ones.")


def exact_zeros() -> None:
    late = pooled[:, 0] - pooled[:, 4] + rng.logistic(size=ROWS) > 1.0
    model = VerticalClassifier(penalty=0.05, l1_ratio=0.8, class_weight="balanced").fit(blocks, late)
    used = [name for part in model.coefficients_.values() for name, weight in part.items() if weight != 0.0]
    print(f"Elastic net, both classes alike: {len(used)} of 9 columns are used.")


if __name__ == "__main__":
    several_classes()
    counts_over_years()
    far_labels()
    exact_zeros()
