"""Three hospitals with a CSV file each: one model from a job file, and new rows scored by it.

Run with `python examples/sites_with_files.py`. The data is generated.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import offbeat
from offbeat import RunRecord

JOB = """
seed = 1
updates = 400

[model]
kind = "logistic"

[privacy]
epsilon = 3.0

[data]
label = "again"
columns = { age = [0, 120], visits = [0, 30], sex = ["f", "m"] }
"""


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"patient": np.arange(rows) + 1000 * seed, "age": rng.integers(18, 95, rows)})
    frame["visits"], frame["sex"] = rng.poisson(4, rows), rng.choice(["f", "m"], rows)
    risk = (frame["age"] - 55) / 10 + frame["visits"] - 4 + 2.0 * (frame["sex"] == "m") - 1
    return frame.assign(again=np.where(risk + rng.logistic(size=rows) > 0, "yes", "no"))


def main(folder: Path) -> None:
    text = JOB
    for seed, site in enumerate(("oslo", "porto", "turin"), start=1):
        patients(2000, seed).to_csv(folder / f"{site}.csv", index=False)
        text += f'[[site]]\nname = "{site}"\nfile = "{site}.csv"\nid = "patient"\n'
    (folder / "job.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "offbeat", "run", str(folder / "job.toml"), "--out", str(folder / "run")]
    subprocess.run(command, check=True, capture_output=True)

    fresh = patients(1000, 9)
    model, privacy = offbeat.load_sites(folder / "run"), RunRecord.read(folder / "run").privacy
    spent = max(stated["epsilon"] for stated in privacy.values())
    print(f"{len(privacy)} sites, each spent at most {spent:.2f} of epsilon.")
    print(f"accuracy on {len(fresh)} new rows: {np.mean(model.predict(fresh) == fresh['again']):.3f}")
    print(f"the first of them comes again with a chance of {model.predict_proba(fresh)[0, 1]:.2f}")


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        main(Path(place))
