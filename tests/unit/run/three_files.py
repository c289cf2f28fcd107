"""A bank, a shop and a telecom with mixed columns, and a run over their three files."""

import numpy as np
import pandas as pd

from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import job_from
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_result

ROWS = 300


def frames(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    income, town, spend = rng.lognormal(8, 1, rows), rng.choice(["north", "south", "west"], rows), rng.normal(size=rows)
    calls = rng.poisson(3, rows).astype(float)
    score = np.log(income) - 8 + (town == "north") - (town == "west") + spend + 0.3 * calls - 1
    income[rng.random(rows) < 0.1] = np.nan
    y = np.where(score + rng.logistic(size=rows) > 0, "good", "bad")
    ids = rng.permutation(10 * rows)[:rows]
    return {
        "bank": pd.DataFrame({"id": ids, "income": income, "y": y, "amount": 3 * score}),
        "shop": pd.DataFrame({"id": ids, "town": town, "spend": spend}),
        "telecom": pd.DataFrame({"id": ids, "calls": calls}),
    }


def trained(folder, label="y", **keys):
    """Train on three files; the run folder, its result and the job's data."""
    for name, frame in frames().items():
        frame.sample(frac=1, random_state=len(name)).to_csv(folder / f"{name}.csv", index=False)
    columns = {"bank": ["income"]}
    party = [{"name": name, "file": str(folder / f"{name}.csv"), "id": "id"} for name in ("bank", "shop", "telecom")]
    party = [{**one, **({"columns": columns[one["name"]]} if one["name"] in columns else {})} for one in party]
    party[0]["label"] = label
    job = job_from({"algorithm": "vfb2-svrg", "passes": 5.0, "optimum": False, "party": party, **keys})
    data = load_data(job)
    result = run_experiment(data, job)
    write_job(job, folder / "run")
    write_result(result, folder / "run")
    return folder / "run", result, data, job
