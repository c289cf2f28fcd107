"""Tables as organisations hold them: text, dates, empty cells, raw scales. Train from files, then score new rows.

Run with `python examples/mixed_tables.py`. The data is generated.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import offbeat
from offbeat.run.folder import write_job, write_result

JOB = """
algorithm = "vfb2-svrg"
passes = 15

[data]
prepare = "auto"          # or "bins"

[[party]]
name = "bank"
file = "bank.csv"
id = "customer"
label = "default"

[[party]]
name = "shop"
file = "shop.csv"
id = "customer"
prepare = { how = "auto", columns = { postcode = "category" } }   # digits, and no number

[[party]]
name = "telecom"
file = "telecom.csv"
id = "customer"
"""


def tables(rows: int, seed: int) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    income, age = rng.lognormal(10, 1, rows), rng.integers(18, 90, rows)
    job = rng.choice(["clerk", "nurse", "pilot", "smith"], rows, p=[0.5, 0.3, 0.15, 0.05])
    spend, since = rng.normal(50, 20, rows), rng.integers(0, 4000, rows)
    score = 0.8 * (np.log(income) - 10) + (job == "pilot") - 0.02 * spend + 0.0005 * since
    income[rng.random(rows) < 0.2] = np.nan
    default = np.where(score + rng.logistic(size=rows) < 0, "yes", "no")
    customer = rng.permutation(10 * rows)[:rows]
    bank = pd.DataFrame({"customer": customer, "income": income, "job": job, "age": age, "default": default})
    shop = pd.DataFrame({"customer": customer, "spend": spend, "postcode": rng.choice([1010, 2020, 3030], rows)})
    day = pd.Timestamp("2015-01-01") + pd.to_timedelta(since, unit="D")
    telecom = pd.DataFrame(
        {"customer": customer, "customer since": day.strftime("%Y-%m-%d"), "prepaid": rng.random(rows) < 0.5}
    )
    return {"bank": bank, "shop": shop, "telecom": telecom}


with TemporaryDirectory() as place:
    folder = Path(place)
    for name, table in tables(2000, seed=1).items():
        table.to_csv(folder / f"{name}.csv", index=False, sep=";", decimal=",")
    (folder / "job.toml").write_text(JOB)
    job = offbeat.read_job(folder / "job.toml")
    data = offbeat.load_data(job)
    result = offbeat.run_experiment(data, job)
    write_job(job, folder / "run")
    write_result(result, folder / "run")
    print(f"Test AUC {result.record.metrics['test_auc']:.3f}. What was done to the columns:")
    for note in data.notes:
        print(f"  {note}")

    model = offbeat.load(folder / "run")
    for name in ("bank", "shop", "telecom"):
        told = (f"{c} {w:+.2f}" for c, w in model.coefficients[name].items())
        print(f"{name}: {', '.join(told)}")
    new = tables(5, seed=2)
    new["bank"].loc[0, "job"] = "astronaut"  # a category that nobody has seen
    chance = model.predict_proba(new)[:, 1]
    print(f"Chance of {model.classes[1]!r} for five new customers: {np.round(chance, 2)}")
