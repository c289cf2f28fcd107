"""The two aggregation trees of AFSGD-VP's Algorithm 2, and a check that they really hide.

A tree has one node per party; a party sends the sum over its subtree to its parent; the root is the requester. In
the first tree masked shares are summed, in the second the masks alone; the root subtracts. The papers ask only that
the trees be "significantly different", which does not suffice (two stars satisfy it and reveal everything). What is
needed is a statement about views: a pair is *1-private* when no single party's received messages determine any
combination of the other parties' shares, except the total at the root. That is a rank condition, checked here for
every party before a pair is used.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from offbeat.errors import BadJob

PartyName = str

Tree = Mapping[PartyName, PartyName]
"""Party to parent; the root has no entry."""


@lru_cache(maxsize=256)
def two_trees(roster: tuple[PartyName, ...], root: PartyName) -> tuple[Tree, Tree]:
    """A logarithmic pair: a binary heap under the root by a single edge, and the same heap in reversed order."""
    others = [name for name in roster if name != root]
    if len(others) < 2:
        raise BadJob(
            f"Two trees need three parties or more; {len(roster)} are on the roster. With two parties the asker "
            "subtracts its own share from the total and has the other's: no scheme can hide it. Add a party, or set "
            "two_party_insecure = true to accept this."
        )
    pair = _heap(others, root), _heap(others[::-1], root)
    leak = leaked_dimensions(*pair, root, others)
    if any(leak.values()):
        culprits = ", ".join(name for name, extra in leak.items() if extra)
        raise BadJob(f"The pair of trees rooted at {root} lets {culprits} learn more than the total.")
    return pair


def one_tree(roster: Sequence[PartyName], root: PartyName) -> Tree:
    """Algorithm 1's plain tree. Partial sums travel in the clear: for research only."""
    return _heap([name for name in roster if name != root], root)


def children(tree: Tree, node: PartyName) -> tuple[PartyName, ...]:
    return tuple(sorted(child for child, parent in tree.items() if parent == node))


def leaked_dimensions(first: Tree, second: Tree, root: PartyName, others: Sequence[PartyName]) -> dict[PartyName, int]:
    """For every single party, how many independent combinations of others' shares its view determines beyond what
    it must know (the root: the total)."""
    return {viewer: coalition_leak(first, second, root, others, {viewer}) for viewer in (root, *others)}


def coalition_leak(
    first: Tree, second: Tree, root: PartyName, others: Sequence[PartyName], coalition: set[PartyName]
) -> int:
    """rank(A) + rank(B) - rank([A; B]), less one for the total where the root is in the coalition.

    A and B hold, as indicator rows over the honest parties, the subtrees whose sums the coalition receives in the
    first and second tree. A combination of masked shares can be unmasked exactly when the same combination of masks
    is received too.
    """
    honest = [name for name in (*others, root) if name not in coalition]
    a, b = _received(first, coalition, honest), _received(second, coalition, honest)
    leak = _rank(a) + _rank(b) - _rank(np.vstack((a, b)))
    return leak - (1 if root in coalition and honest else 0)


def _received(tree: Tree, coalition: set[PartyName], honest: Sequence[PartyName]) -> np.ndarray:
    rows = [
        [name in _subtree(tree, child) for name in honest]
        for child, parent in tree.items()
        if parent in coalition and child not in coalition
    ]
    return np.array(rows, dtype=float).reshape(len(rows), len(honest))


def _subtree(tree: Tree, node: PartyName) -> set[PartyName]:
    members = {node}
    for child in children(tree, node):
        members |= _subtree(tree, child)
    return members


def _rank(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


def _heap(order: Sequence[PartyName], root: PartyName) -> Tree:
    return {name: (order[(i - 1) // 2] if i else root) for i, name in enumerate(order)}
