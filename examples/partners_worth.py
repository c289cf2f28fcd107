"""What is each partner worth? Shapley values of the test AUC for a bank, a telecom, a shop, and one that brings noise.

Run with `python examples/partners_worth.py`. The data is generated.
"""

import numpy as np
from sklearn.model_selection import train_test_split

from offbeat import PartyColumns, VerticalClassifier

ROWS = 3000
rng = np.random.default_rng(0)
both = rng.normal(size=ROWS)  # what bank and telecom know alike
columns = {
    "bank": np.column_stack([both, rng.normal(size=ROWS)]),
    "telecom": np.column_stack([both + 0.1 * rng.normal(size=ROWS), rng.normal(size=ROWS)]),
    "shop": rng.normal(size=(ROWS, 2)),
    "noise": rng.normal(size=(ROWS, 5)),
}
risk = 1.5 * both + 0.5 * columns["bank"][:, 1] + 0.8 * columns["shop"][:, 0]
default = risk + rng.logistic(size=ROWS) > 1.0

X, X_test, y, y_test = train_test_split(PartyColumns(columns), default, test_size=0.4, random_state=0)
model = VerticalClassifier(target=1e-4).fit(X, y)
found = model.worth(X, y, X_test, y_test)

print(f"{found.score}: {found.empty:.3f} without any party, {found.joint:.3f} with all of them. Worth of each:")
for party, value in found.values.items():
    alone = found.coalitions[party] - found.empty
    last = found.joint - found.coalitions[" + ".join(one for one in columns if one != party)]
    told = f"{value:+.3f} ± {found.errors[party]:.3f}   alone {alone:+.3f}, joining last {last:+.3f}"
    print(f"  {party:<8} {told}")
print(f"They add up to {sum(found.values.values()):.3f}. Bank and telecom share what both know.")
