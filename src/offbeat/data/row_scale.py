"""Scaling the rows of all parties.

party-unit    each party scales its own part of every row to norm 1/sqrt(q): no row is longer than 1, and nothing
              is pooled (a part that is all zero stays zero)
pooled-unit   every whole row is scaled to norm 1, as in the published experiments. It needs the sum of the
              parties' squared norms for each row, which a real run would have to share: for comparisons only
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from offbeat.data.matrix import Floats, Matrix, row_norms, scale_rows, squared_row_norms

Rows = Literal["as-is", "party-unit", "pooled-unit"]


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
