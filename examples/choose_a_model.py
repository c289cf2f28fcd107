"""Which model: several classes at three parties, held against scikit-learn's pooled one.

Run with `python examples/choose_a_model.py`. The data is generated.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

from offbeat import VerticalClassifier

PENALTY = 1e-2


def several_classes(rows: int = 500) -> None:
    rng = np.random.default_rng(0)
    blocks = {name: rng.normal(size=(rows, 3)) for name in ("bank", "shop", "telecom")}
    pooled = np.hstack(list(blocks.values()))
    scores = pooled @ rng.normal(size=(9, 4)) + rng.gumbel(size=(rows, 4))
    kind = np.array(["cash", "card", "loan", "none"])[scores.argmax(axis=1)]
    model = VerticalClassifier(penalty=PENALTY, target=1e-8, prepare="none").fit(blocks, kind)
    theirs = LogisticRegression(C=1 / (rows * PENALTY), tol=1e-10, max_iter=1000).fit(pooled, kind)
    apart = np.abs(model.predict_proba(blocks) - theirs.predict_proba(pooled)).max()
    print(f"Classes {', '.join(model.classes_)}: certificate {model.certificate_.duality_gap:.1e},")
    print(f"  probabilities at most {apart:.0e} from those of scikit-learn on the pooled columns.")


if __name__ == "__main__":
    several_classes()
