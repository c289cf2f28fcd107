"""A party's features: dense float64 rows, or CSR. The few operations on either that the data layer needs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Csr: TypeAlias = "sp.csr_matrix[np.float64]"
Matrix: TypeAlias = "NDArray[np.float64] | sp.csr_matrix[np.float64]"


def is_sparse(matrix: Any) -> bool:
    return bool(sp.issparse(matrix))


def as_matrix(values: Any) -> Matrix:
    """Anything array-like as dense float64 rows, anything sparse as canonical CSR; copies only when it must."""
    if is_sparse(values):
        csr: Csr = sp.csr_matrix(values, dtype=np.float64)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        return csr
    return np.ascontiguousarray(values, dtype=np.float64)


def take_rows(matrix: Matrix, rows: Integers | Flags) -> Matrix:
    return matrix[rows]


def cut_columns(matrix: Matrix, parts: Mapping[str, Integers]) -> dict[str, Matrix]:
    """One block per party, its columns in the order given."""
    if isinstance(matrix, np.ndarray):
        return {name: np.ascontiguousarray(matrix[:, columns]) for name, columns in parts.items()}
    return dict(_cut_sparse(matrix, parts))


def _cut_sparse(matrix: Csr, parts: Mapping[str, Integers]) -> dict[str, Csr]:
    """Every non-zero is looked up once: whose it is, and which of the owner's columns."""
    owner = np.full(matrix.shape[1], -1, dtype=np.int16)
    place = np.zeros(matrix.shape[1], dtype=np.int32)
    for i, columns in enumerate(parts.values()):
        owner[columns], place[columns] = i, np.arange(columns.size)
    owners, places = owner[matrix.indices], place[matrix.indices]
    blocks: dict[str, Csr] = {}
    for i, (name, columns) in enumerate(parts.items()):
        mine = np.flatnonzero(owners == i)
        starts = np.searchsorted(mine, matrix.indptr)
        blocks[name] = sp.csr_matrix((matrix.data[mine], places[mine], starts), shape=(matrix.shape[0], columns.size))
        blocks[name].sort_indices()
    return blocks


def stack_columns(blocks: Sequence[Matrix]) -> Matrix:
    """Blocks side by side; sparse as soon as one of them is."""
    if any(is_sparse(block) for block in blocks):
        return sp.csr_matrix(sp.hstack([sp.csr_matrix(block) for block in blocks], format="csr"))
    return np.hstack([np.asarray(block) for block in blocks])


def row_norms(matrix: Matrix) -> Floats:
    return np.sqrt(squared_row_norms(matrix))


def squared_row_norms(matrix: Matrix) -> Floats:
    if isinstance(matrix, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", matrix, matrix))
    return np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()


def scale_rows(matrix: Matrix, factors: Floats) -> Matrix:
    if isinstance(matrix, np.ndarray):
        return matrix * factors[:, None]
    scaled = matrix.data * np.repeat(factors, np.diff(matrix.indptr))
    return sp.csr_matrix((scaled, matrix.indices, matrix.indptr), shape=matrix.shape)


def scale_columns(matrix: Matrix, factors: Floats) -> Matrix:
    if isinstance(matrix, np.ndarray):
        return matrix * factors
    return sp.csr_matrix((matrix.data * factors[matrix.indices], matrix.indices, matrix.indptr), shape=matrix.shape)


# -- the rows of all parties -----------------------------------------------------------------------------------------

Rows = Literal["as-is", "party-unit", "pooled-unit"]
"""party-unit: each party scales its own part of every row to norm 1/sqrt(q): no row is longer than 1, and nothing is
pooled (a part that is all zero stays zero). pooled-unit: every whole row is scaled to norm 1, as in the published
experiments. It needs the sum of the parties' squared norms for each row, which a real run would have to share: for
comparisons only."""


def scale_party_rows(blocks: Mapping[str, Matrix], rows: Rows) -> dict[str, Matrix]:
    if rows == "as-is" or not blocks:
        return dict(blocks)
    if rows == "party-unit":
        return {name: party_unit_rows(block, len(blocks)) for name, block in blocks.items()}
    pooled = np.sqrt(np.sum([squared_row_norms(block) for block in blocks.values()], axis=0))
    return {name: scale_rows(block, _inverse(pooled)) for name, block in blocks.items()}


def party_unit_rows(block: Matrix, parties: int) -> Matrix:
    """One party's rows at norm 1/sqrt(q); it needs to know how many parties there are, and nothing else."""
    return scale_rows(block, _inverse(row_norms(block)) / np.sqrt(parties))


def _inverse(norms: Floats) -> Floats:
    return np.where(norms > 0, 1.0 / np.where(norms > 0, norms, 1.0), 0.0)
