"""Networks of your own over columns that stay with their owners: classes, numbers, and a model that is kept.

    python examples/bring_your_own_network.py          needs the extra `deep`

The data is generated: what is bought depends on products of columns, which no linear model can learn.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from torch import nn

from offbeat import DeepVerticalClassifier, DeepVerticalRegressor, VerticalClassifier

ROWS, KNOWN = 500, 400
rng = np.random.default_rng(0)
bank = pd.DataFrame({"income": rng.normal(3000, 800, ROWS), "debt": rng.normal(0, 1, ROWS)})
shop = pd.DataFrame({"spend": rng.normal(0, 1, ROWS), "town": rng.choice(["north", "south"], ROWS)})
wish = (bank.income - 3000) / 800 * bank.debt + shop.spend * np.where(shop.town == "north", 1, -1)
bought = np.where(wish > 0, "yes", "no")


def network(inputs: int) -> nn.Module:
    """For as many inputs as there are prepared columns: a town is two of them."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 4))


def head(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2))


def cut(rows: slice) -> dict[str, pd.DataFrame]:
    return {"bank": bank[rows], "shop": shop[rows]}


if __name__ == "__main__":
    train, test = slice(0, KNOWN), slice(KNOWN, ROWS)
    model = DeepVerticalClassifier(modules={"bank": network, "shop": network}, head=head, step=1e-2, passes=25)
    model.fit(cut(train), bought[train])
    linear = VerticalClassifier(two_party_insecure=True).fit(cut(train), bought[train])
    print(f"accuracy on unseen rows: {model.score(cut(test), bought[test]):.3f}, ", end="")
    print(f"of a linear model {linear.score(cut(test), bought[test]):.3f}")

    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        back = DeepVerticalClassifier.load(
            Path(folder) / "model", modules={"bank": network, "shop": network}, head=head
        )
        same = (back.predict(cut(test)) == model.predict(cut(test))).all()
    print(f"the same from its folder: {same}")

    numbers = DeepVerticalRegressor(step=1e-2, passes=20, early_stopping=8).fit(cut(train), 1e6 * wish[train])
    print(
        f"R2 of numbers in millions, with small networks of their own: {numbers.score(cut(test), 1e6 * wish[test]):.3f}"
    )
    print(f"  {numbers.record_.reason}")
    print(model.record_.warnings[0])
