"""20 Newsgroups as counts of words and word pairs: the real sparse set, as wide as news20.binary."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from offbeat.data.columns import NumberedColumns
from offbeat.data.dataset import DataSet
from offbeat.data.matrix import as_matrix
from offbeat.data.places import set_folder
from offbeat.data.preparation import Preparation
from offbeat.data.table import Table

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
