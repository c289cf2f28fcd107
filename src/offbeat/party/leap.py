"""A leap: from where the steps have led to the best point in the span of the last surveys' points.

A survey freezes the blocks at a point w and learns the products of all rows with it. Each party keeps its block of the
last few *moves*, from one frozen point to the next; the chair keeps the products of all rows with them. Since products
are linear in the weights, the chair alone can find the best point

    w + sum_i a_i move_i

for it needs no more than the products and, for the l2 penalty, the inner products of moves and point, which are sums
over the parties of their own (`learning/subspace.py`). It tells everybody the coefficients, and each party leaps within
its own block. The point where the last leap ended is in the span too (until a move that it used is forgotten), so a
leap does not make the objective worse, and a run whose steps were too long comes back by itself. The chair's constant
is found along with it.

Where the model has several outputs, a move moves them all, and each has a constant of its own.

Only products of frozen points are summed and kept. Those of the points where leaps end follow from them, and nothing is
built upon these: small errors cannot grow from survey to survey. Sums are rounded, so the products of a very short move
are mostly noise, and the best point along noise is far away and no good. So coefficients have a price: what the noise
that they multiply may cost, with a margin. A move well above the noise does not feel it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.subspace import Best, Quadratic, Search
from offbeat.party.problem import Problem

Floats = NDArray[np.float64]
MOVES_MOST, MOVES_LEAST = 40, 2
PRODUCTS_KEPT_MOST = 2**23
"""How many numbers the chair keeps of past products: 64 MiB."""
PACE_LEAST = 2.0**-10
SHORTER, LONGER = 0.5, 1.5
BELOW_FAILURE, FORGIVING = 0.7, 1.05
"""A pace that led uphill is not tried again soon: the next ones stay below this part of it, a little more each time."""
ABOVE_NOISE = 1e5
"""A move whose products are so many times larger than their noise counts fully."""
FLOAT_NOISE = 2.0**-51


def moves_kept(rows: int, outputs: int) -> int:
    return max(MOVES_LEAST, min(MOVES_MOST, PRODUCTS_KEPT_MOST // (rows * outputs)))


class Moves:
    """One party's side: the last frozen point of its block, and the moves that led there."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.blank()

    def blank(self) -> None:
        """Forget everything: the next survey begins at a point of its own."""
        self.point: Floats | None = None
        self.moves: list[Floats] = []

    def directions(self, point: Floats) -> list[Floats]:
        """The span at a newly frozen point: the kept moves and the move to this point."""
        return [] if self.point is None else [*self.moves, point - self.point]

    def inner_products(self, point: Floats) -> Floats:
        """What the chair needs of this block: the point with itself; with every direction; and the newest direction
        with every direction."""
        directions = self.directions(point)
        products = [_inner(left, right) for left in (point, *directions[-1:]) for right in directions]
        return np.array([_inner(point, point), *(products if directions else ())])

    def land(self, point: Floats, coefficients: Floats, constant: Floats) -> Floats:
        """How the block moves from the frozen point."""
        leap = np.zeros_like(point)
        directions = self.directions(point)
        for direction, factor in zip(directions, coefficients.tolist(), strict=True):
            leap += factor * direction
        leap[:, -1] += constant
        self.moves, self.point = directions[-self.most :], point
        return leap

    def snapshot(self) -> dict[str, Any]:
        return {"point": self.point, "moves": list(self.moves)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.point, self.moves = state["point"], list(state["moves"])


def _inner(left: Floats, right: Floats) -> float:
    """Without the constants, which have no penalty."""
    return float(np.vdot(left[:, :-1], right[:, :-1]))


class LastArrays:
    """The last few arrays, all of one length, side by side in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.first, self.stop, self.room = most, 0, 0, np.empty((0, 0))

    def add(self, array: Floats, less: float | Floats = 0.0) -> None:
        """One more, less another array; the oldest goes where there are too many."""
        if not len(self.room):
            self.room = np.empty((self.most + max(self.most // 4, 1), len(array)))
        self.first = max(self.first, self.stop + 1 - self.most)
        if self.stop == len(self.room):
            for i in range(self.first, self.stop):
                self.room[i - self.first] = self.room[i]
            self.first, self.stop = 0, self.stop - self.first
        np.subtract(array, less, out=self.room[self.stop])
        self.stop += 1

    @property
    def rows(self) -> Floats:
        return self.room[self.first : self.stop]


class Pilot:
    """The chair's side: products with the last frozen point and the moves, and the moves' inner products."""

    def __init__(self, problem: Problem, most: int, *, leaps: bool, noise: float = 0.0) -> None:
        self.problem, self.most = problem, most
        self.noise = noise  # of a product that was summed
        self.leaps = leaps and problem.spanned
        self.pace = 1.0  # what steps are multiplied by
        self.pace_most = 1.0
        self.blank()

    def blank(self) -> None:
        self.products: Floats | None = None  # with the last frozen point
        self.along = LastArrays(self.most + 1)  # with the kept moves, and one before them
        self.last = np.zeros(0)  # the coefficients of the last leap, one for each kept move,
        self.shift: float | Floats = 0.0  # and how far it moved the constant, or the constants of several outputs
        self.gram = np.zeros((0, 0))  # of the kept moves
        self.objective = np.inf  # where the last leap ended, as far as it is known

    def find(self, products: Floats, inner: Floats) -> Best:
        """Where to leap, from the products with the newly frozen point and the sum of all parties' inner products."""
        if self.products is not None:
            self.along.add(products, self.products)
        directions = self.along.rows
        linear, gram = self._span(inner, len(directions))
        noise, strength = self.noise + FLOAT_NOISE * float(np.abs(products).max()), self.problem.quadratic_strength
        price = self.problem.loss.curvature * (ABOVE_NOISE * noise) ** 2
        penalty = Quadratic(
            1.0, strength * float(inner[0]), strength * linear, strength * gram + price * np.eye(len(gram))
        )
        search = self._search(products, directions, penalty)
        uphill = len(directions) > 0 and self._judge_steps(search)
        best = search.run(self._start(search) if uphill else None) if self.leaps else self._stay(search, uphill)
        self.products, self.objective = products, best.objective + penalty.rounding(best.coefficients)
        self.last = best.coefficients[-self.most :]
        self.shift = best.constants if self.problem.outputs > 1 else float(best.constants[0])
        return best

    def _search(self, products: Floats, directions: Floats, penalty: Quadratic) -> Search:
        problem = self.problem
        assert problem.labels is not None
        along = directions if len(directions) else np.zeros((0, len(products)))
        return Search(
            problem.loss, problem.labels, problem.weights, products, along, penalty, constant=problem.intercept
        )

    def _span(self, inner: Floats, count: int) -> tuple[Floats, Floats]:
        """The inner products of the directions with the point and with each other, all as the parties computed them:
        those of the newest direction now, the others when they were new."""
        if count == 0:
            return np.zeros(0), np.zeros((0, 0))
        linear, newest = inner[1:].reshape(2, count)
        gram = np.empty((count, count))
        gram[:-1, :-1] = self.gram
        gram[-1, :] = gram[:, -1] = newest
        self.gram = gram[-self.most :, -self.most :]
        return linear, gram

    def _judge_steps(self, search: Search) -> bool:
        """Steps that led uphill are too long; otherwise longer ones are tried. Whether they led uphill."""
        self.pace_most *= FORGIVING
        if not self.leaps:  # nothing would mend what steps that were too long did
            self.pace_most = min(self.pace_most, 1.0)
        uphill = not search.value(search.origin) <= self.objective * (1.0 + 1e-12)
        if uphill:
            self.pace_most = BELOW_FAILURE * self.pace
            self.pace = max(self.pace * SHORTER, PACE_LEAST)
        else:
            self.pace = max(self.pace, min(self.pace * LONGER, self.pace_most))
        return uphill

    def _stay(self, search: Search, uphill: bool) -> Best:
        """Where nothing leaps, a loss that grows still goes back from uphill, to where the last survey ended."""
        return search.stay(self._start(search) if uphill and self.problem.loss.grows else None)

    def _start(self, search: Search) -> Floats | None:
        """Where the last leap ended, in coefficients of the present directions and, last, of the constant; None where
        that is worse than here, since a move that it used is forgotten."""
        landing = np.concatenate((self.last, [-1.0], np.atleast_1d(self.shift)))
        here = search.value(search.origin)
        return landing if search.value(landing) < here else None

    def snapshot(self) -> dict[str, Any]:
        names = ("products", "along", "last", "shift", "gram", "objective", "pace", "pace_most")
        kept = [row.copy() for row in self.along.rows[-self.most :]]
        return {name: getattr(self, name) for name in names} | {"along": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.blank()
        for row in state["along"]:
            self.along.add(row)
        for name, value in state.items():
            if name != "along":
                setattr(self, name, value)
