"""The tables among the real sets: two of credit defaults, one of kernel run times, one of voice recordings, and 20
Newsgroups as counts of words and word pairs: sparse, and as wide as news20.binary."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from offbeat.data.columns import NumberedColumns
from offbeat.data.dataset import DataSet
from offbeat.data.holdout import held_out
from offbeat.data.matrix import Flags, Integers, as_matrix
from offbeat.data.places import set_folder
from offbeat.data.preparation import Preparation, Treatment
from offbeat.data.table import NAMELESS, Table, read_table

PAY = ("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")
CREDIT_CATEGORICAL: dict[str, Treatment] = dict.fromkeys(("SEX", "EDUCATION", "MARRIAGE", *PAY), "category")

# Centred columns leave the share of defaults to the intercept: `standardised` needs one, `01` does without.
CREDIT_PREPARATIONS = {
    "standardised": Preparation(how="scaled", columns=CREDIT_CATEGORICAL, scale_indicators=True, rows="party-unit"),
    "01": Preparation(how="scaled", columns=CREDIT_CATEGORICAL, rows="party-unit"),
    "plain": Preparation(how="scaled", rows="party-unit"),
}


def uci_credit_card(data_dir: str | Path | None = None) -> DataSet:
    """30,000 clients, 23 columns, 22.12 % default. The papers print 90 columns after one-hot, 24,000 / 6,000 rows."""
    file = set_folder("uci_credit_card", data_dir) / "UCI_Credit_Card.csv.xz"
    table = read_table(file, id="ID", label="default.payment.next.month")
    return DataSet(
        name="uci_credit_card",
        about="UCI default of credit card clients (real, 30,000 rows, 23 raw columns)",
        table=table,
        task="classification",
        preparations=CREDIT_PREPARATIONS,
        usual="01",
        test_rows=6_000,
    )


def give_me_some_credit(data_dir: str | Path | None = None) -> DataSet:
    """The 120,269 rows without a missing value, 10 columns; 10 quantile bins give about the papers' 92 columns."""
    file = set_folder("give_me_some_credit", data_dir) / "cs-training.csv.xz"
    everything = read_table(file, id=NAMELESS, label="SeriousDlqin2yrs", missing="keep")
    features = np.asarray(everything.features)
    complete = np.isfinite(features).all(axis=1)
    assert everything.labels is not None
    table = Table(
        ids=everything.ids[complete].astype(np.int64),  # the file's first, unnamed column numbers the rows
        columns=tuple(everything.columns),
        features=np.ascontiguousarray(features[complete]),
        labels=everything.labels[complete],
        name=everything.name,
    )
    return DataSet(
        name="give_me_some_credit",
        about="Give Me Some Credit (real, the 120,269 complete rows of 150,000, 10 raw columns)",
        table=table,
        task="classification",
        preparations={
            "binned-standardised": Preparation(how="bins", bins=10, scale_indicators=True, rows="party-unit"),
            "binned-01": Preparation(how="bins", bins=10, rows="party-unit"),
            "plain": Preparation(how="scaled", rows="party-unit"),
        },
        usual="binned-01",
        test_rows=24_012,
    )


def sgemm_gpu(data_dir: str | Path | None = None) -> DataSet:
    """241,600 rows, 14 columns; to predict: the logarithm of the mean of four run times in ms."""
    file = set_folder("sgemm_gpu", data_dir) / "sgemm_product.csv.xz"
    table = read_table(file)
    features = np.asarray(table.features)
    columns = tuple(table.columns[:14])
    target = np.log(features[:, 14:].mean(axis=1))
    return DataSet(
        name="sgemm_gpu",
        about="UCI SGEMM GPU kernel performance (real, 241,600 rows, 14 raw columns; target: log of the mean run time)",
        table=Table(table.ids, columns, np.ascontiguousarray(features[:, :14]), target, table.name),
        task="regression",
        preparations={
            "standardised": Preparation(how="scaled"),
            "unit": Preparation(how="scaled", rows="party-unit"),
            "one-hot": Preparation(how="scaled", columns=dict.fromkeys(columns, "category"), scale_indicators=True),
        },
        usual="standardised",
        centre_labels=True,
    )


def parkinsons_telemonitoring(
    data_dir: str | Path | None = None, seed: int = 0, target: str = "total_UPDRS", threshold: bool = False
) -> DataSet:
    """5,875 recordings of 42 people, 19 columns. The test rows are those of a fifth of the *people* (by seed): one
    person's recordings never stand on both sides. `threshold`: whether the target is above its training median."""
    table = read_table(set_folder("parkinsons_telemonitoring", data_dir) / "parkinsons_updrs.csv.xz")
    features = np.asarray(table.features)
    place = {column: j for j, column in enumerate(table.columns)}
    kept = [j for column, j in place.items() if column not in ("subject#", "motor_UPDRS", "total_UPDRS")]
    test = people_held_out(features[:, place["subject#"]].astype(np.int64), seed)
    labels = features[:, place[target]]
    if threshold:
        labels = (labels > np.median(labels[~test])).astype(np.float64)
    return DataSet(
        name="parkinsons_telemonitoring" + ("_high" if threshold else ""),
        about="UCI Parkinsons telemonitoring (real, 5,875 recordings of 42 people, split by person; target: "
        + (f"{target} above its training median)" if threshold else f"{target})"),
        table=Table(
            table.ids,
            tuple(table.columns[j] for j in kept),
            np.ascontiguousarray(features[:, kept]),
            labels,
            table.name,
        ),
        task="classification" if threshold else "regression",
        preparations={"standardised": Preparation(how="scaled")},
        usual="standardised",
        test=test,
        centre_labels=not threshold,
    )


def people_held_out(people: Integers, seed: int, fraction: float = 0.2) -> Flags:
    """Rows of the people kept for testing: whole people, drawn by the hash of their number."""
    everyone = np.unique(people)
    return np.isin(people, everyone[held_out(everyone, seed=seed, fraction=fraction)])


RCV1_COLUMNS = 47_236


def news20_ngrams(data_dir: str | Path | None = None, columns: int | None = None, by_date: bool = False) -> DataSet:
    """18,846 documents, 1,403,214 columns sorted by falling document frequency (words, then word pairs); the label is
    whether the group number is below 10 (51.2 %). `columns` keeps the first so many; `by_date`: the official split."""
    folder = set_folder("news20_ngrams", data_dir)
    counts = sp.csr_matrix(sp.load_npz(folder / "news20_counts.npz"))
    if columns is not None:
        counts = counts[:, :columns]
    with np.load(folder / "news20_labels.npz", allow_pickle=False) as archive:
        labels, test = (archive["group"] < 10).astype(np.float64), archive["is_test"] == 1
    features = as_matrix(counts)
    name = "news20_ngrams" + ("" if columns is None else f"_{columns // 1000}k") + ("_by_date" if by_date else "")
    return DataSet(
        name=name,
        about=f"20 Newsgroups n-grams (real, 18,846 rows, {features.shape[1]:,} columns, label group < 10"
        + (", split by date)" if by_date else ")"),
        table=Table(
            np.arange(features.shape[0], dtype=np.int64),
            NumberedColumns(range(features.shape[1]), "ngram"),
            features,
            labels,
            name,
        ),
        task="classification",
        preparations={
            "tf-idf": Preparation(how="none", counts="tf-idf", rows="party-unit"),
            "log1p": Preparation(how="none", counts="log1p", rows="party-unit"),
            "counts": Preparation(how="none"),
        },
        usual="tf-idf",
        test=test if by_date else None,
    )
