"""Credit tables as three CSV files, by `offbeat run` and from Python, beside scikit-learn on the same rows, pooled."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

from offbeat import VerticalClassifier
from offbeat.cli.root import app
from offbeat.data.load import load_dataset
from offbeat.data.places import find_set
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import read_job

TARGET, PENALTY, NEAR = 1e-5, 1e-4, 0.002
FILES = {"give_me_some_credit": "cs-training.csv.xz", "uci_credit_card": "UCI_Credit_Card.csv.xz"}
LABELS = {"give_me_some_credit": "SeriousDlqin2yrs", "uci_credit_card": "default.payment.next.month"}
REACHED = {("give_me_some_credit", "bins"): 0.85, ("uci_credit_card", "bins"): 0.77}


@dataclass(frozen=True)
class Credit:
    """One table, and which party holds which of its columns."""

    frame: pd.DataFrame
    label: str

    @property
    def features(self) -> list[str]:
        return [name for name in self.frame if name not in ("customer", self.label)]

    @property
    def parts(self) -> dict[str, list[str]]:
        return {party: self.features[at::3] for at, party in enumerate(("bank", "telecom", "shop"))}

    def by_party(self, rows: Any) -> dict[str, pd.DataFrame]:
        return {party: self.frame.loc[rows, names] for party, names in self.parts.items()}

    def write(self, folder: Path, how: str) -> Path:
        """Three CSV files, and a job over them that leaves all but the preparation at its default."""
        lines = [f"target = {TARGET}", "optimum = false", "[data]", f'prepare = "{how}"']
        for party, names in self.parts.items():
            label = [self.label] if party == "bank" else []
            self.frame[["customer", *label, *names]].to_csv(folder / f"{party}.csv", index=False)
            lines += ["[[party]]", f'name = "{party}"', f'file = "{party}.csv"', 'id = "customer"']
            lines += [f'label = "{name}"' for name in label]
        (folder / "job.toml").write_text("\n".join(lines))
        return folder / "job.toml"


def generated() -> Credit:
    """The made-up card issuer's clients, a fifth of the cells of two columns missing."""
    data = load_dataset("credit-like@0.05", seed=2)
    frame = pd.DataFrame(data.table.features, columns=list(data.table.columns))
    rng = np.random.default_rng(0)
    for name in frame.columns[[0, -1]]:
        frame[name] = frame[name].astype(float).where(rng.random(len(frame)) > 0.2)
    return Credit(frame.assign(customer=np.arange(len(frame)) + 5000, default=data.table.labels), "default")


def real(name: str) -> Credit:
    folder = find_set(name)
    if folder is None:
        pytest.skip(f"the real data set {name} is not at hand; the generated one was tried")
    frame = pd.read_csv(folder / FILES[name])
    return Credit(frame.rename(columns={frame.columns[0]: "customer"}), LABELS[name])


def compared(credit: Credit, how: str, folder: Path) -> dict[str, float]:
    """Test AUC by command line, by Python, by scikit-learn on the same prepared columns, and by scikit-learn alone."""
    job = credit.write(folder, how)
    told = CliRunner().invoke(app, ["run", str(job), "--out", str(folder / "run"), "--json"])
    assert told.exit_code == 0, told.output
    record = json.loads(told.stdout)
    assert record["certificate"]["duality_gap"] <= TARGET
    data = load_data(read_job(job))
    test = credit.frame["customer"].isin(set(data.ids_test.tolist())).to_numpy()
    y = credit.frame[credit.label].to_numpy()
    model = VerticalClassifier(prepare=how, target=TARGET, penalty=PENALTY).fit(credit.by_party(~test), y[~test])
    assert model.record_.certificate.duality_gap <= TARGET
    pooled = [np.hstack([np.asarray(rows[party]) for party in data.names]) for rows in (data.train, data.test)]
    features = credit.frame[credit.features]
    return {
        "run": record["metrics"]["test_auc"],
        "python": roc_auc_score(y[test], model.predict_proba(credit.by_party(test))[:, 1]),
        "pooled": _auc(regression(data.rows), *pooled, data.y_train, data.y_test),
        "alone": _auc(own_pipeline(how, features[~test]), features[~test], features[test], y[~test], y[test]),
    }


def regression(rows: int) -> LogisticRegression:
    return LogisticRegression(C=1 / (PENALTY * rows), max_iter=5000, tol=1e-6)


def own_pipeline(how: str, train: pd.DataFrame) -> Any:
    """What a user of scikit-learn would write: twenty quantile bins and one for missing cells; or medians, marks and
    standardisation."""
    if how == "auto":
        return make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler(), regression(len(train))
        )
    return make_pipeline(Binned(train), OneHotEncoder(handle_unknown="ignore"), regression(len(train)))


class Binned:
    """Quantile bins by number, -1 for a missing cell."""

    def __init__(self, train: pd.DataFrame) -> None:
        cut = np.linspace(0, 1, 21)[1:-1]
        self.edges: Mapping[str, Any] = {name: np.unique(np.nanquantile(train[name], cut)) for name in train}

    def fit(self, frame: pd.DataFrame, y: Any = None) -> "Binned":
        return self

    def transform(self, frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {name: np.where(frame[name].isna(), -1, np.digitize(frame[name], self.edges[name])) for name in frame}
        )


def _auc(pipeline: Any, train: Any, test: Any, y_train: Any, y_test: Any) -> float:
    return float(roc_auc_score(y_test, pipeline.fit(train, y_train).decision_function(test)))


def check(found: Mapping[str, float]) -> None:
    assert abs(found["run"] - found["pooled"]) <= NEAR, found
    assert abs(found["python"] - found["pooled"]) <= NEAR, found


@pytest.mark.parametrize("how", ["bins", "auto"])
def test_generated_credit_reaches_the_pooled_score(how: str, tmp_path: Path) -> None:
    found = compared(generated(), how, tmp_path)
    check(found)
    assert found["run"] > found["alone"] - 0.01, found  # 300 test rows: bins are cut a little elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bins", "auto"])
@pytest.mark.parametrize("name", list(FILES))
def test_real_credit_reaches_the_pooled_score(name: str, how: str, tmp_path: Path) -> None:
    found = compared(real(name), how, tmp_path)
    print(name, how, found)
    check(found)
    assert found["run"] > found["alone"] - NEAR, found
    assert found["run"] >= REACHED.get((name, how), 0.0), found
