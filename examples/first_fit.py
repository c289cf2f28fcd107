"""A first joint model: three parties, the same patients, different columns, no rows shared.

python examples/first_fit.py
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from offbeat import VerticalClassifier


def main() -> None:
    data = load_breast_cancer()
    scaled = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    train, test, y_train, y_test = train_test_split(scaled, data.target, random_state=0)

    model = VerticalClassifier(penalty=0.1, passes=300, target=1e-6).fit(columns_by_party(train), y_train)

    print(f"accuracy on {len(y_test)} unseen rows: {model.score(columns_by_party(test), y_test):.3f}")
    print(f"the objective is within {model.certificate_.duality_gap:.1e} of the best possible, by the parties' own sum")
    for name, party in model.record_.parties.items():
        print(f"{name:>10}: {party.updates} updates, {party.bytes_sent:,} bytes sent")


def columns_by_party(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"clinic": x[:, :10], "hospital": x[:, 10:20], "laboratory": x[:, 20:]}


if __name__ == "__main__":
    main()
