"""A party's features: dense float64 rows, or CSR. The few operations on either that the data layer needs."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

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
