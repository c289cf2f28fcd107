"""How strong a penalty, when to end, and how to train again: by rows that are held out.

Run with `python examples/choose_a_penalty.py`. The data is generated.
"""

import numpy as np

from offbeat import VerticalClassifier, VerticalClassifierCV

ROWS = 400
rng = np.random.default_rng(1)
blocks = {name: rng.normal(size=(ROWS, 20)) for name in ("bank", "shop", "telecom")}
useful = sum(block[:, 0] - block[:, 1] for block in blocks.values())
late = np.where(useful + 2 * rng.logistic(size=ROWS) > 0, "late", "in time")


def the_penalty() -> float:
    model = VerticalClassifierCV().fit(blocks, late)
    print("penalty   held-out loss   passes")
    for tried in model.penalties_tried_:
        mark = " <" if tried["penalty"] == model.penalty_ else ""
        print(f"{tried['penalty']:<9.3g} {tried['held_out_loss']:<15.4f} {tried['passes']:.1f}{mark}")
    return float(model.penalty_)


def the_end() -> None:
    model = VerticalClassifier(penalty=1e-6, early_stopping=3, target=None).fit(blocks, late)
    print(f"\nEnded after {model.n_iter_:.0f} of 60 passes: {model.record_.reason}.")


def again(penalty: float) -> None:
    model = VerticalClassifier(penalty=penalty, warm_start=True).fit(blocks, late)
    first = model.n_iter_
    corrected = late.copy()
    corrected[:4] = "in time"
    model.fit(blocks, corrected)
    print(f"\nFour labels were corrected: {model.n_iter_:.1f} passes from the model before, {first:.1f} from nothing.")


if __name__ == "__main__":
    best = the_penalty()
    the_end()
    again(best)
