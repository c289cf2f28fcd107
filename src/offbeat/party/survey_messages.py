"""What the parties say to each other in a survey (`survey.py`), and what each message gives away."""

from math import isnan

import numpy as np

from offbeat.party.contract import Message


class Mark(Message, frozen=True):
    """Freeze a copy of your block as survey s.

    Reveals: that the chair wants to know how good the model is, and which parties are slow, to every party.
    """

    epoch: int
    survey: int
    keep: int  # the best survey so far; older points may be forgotten
    late: int  # a bit for each place in the roster: who takes its table behind the others
    certifies: bool = True  # whether the late get this table too, so that a certificate can follow


class Leap(Message, frozen=True):
    """Where the survey's point goes, in the span of the last moves.

    Reveals: how far each of the last moves is repeated, and digests of the table to come, to every party. Before, the
    chair learns the inner products of the moves of all parties together.
    """

    epoch: int
    survey: int
    coefficients: np.ndarray
    pace: float
    table: bytes = b""  # digests of the table that follows, chunk by chunk


class TablePart(Message, frozen=True):
    """The loss's derivatives of rows from `start` where the leap ended.

    Reveals: one derivative per row (for softmax one for each class) to every party. For the logistic and the hinge
    losses its sign is the label, for softmax the one below zero is the label's, and with the label it gives the row's
    product with the whole model away; for the squared loss at the zero start it is the label itself, up to the mean.

    With label_dp_epsilon: one derivative per row to every party. Its sign is the answer that was drawn at random for
    the label, the same one every time, not the label; with that answer it gives the row's product with the whole model
    away.
    """

    epoch: int
    survey: int
    start: int
    derivatives: np.ndarray


class Curved(Message, frozen=True):
    """How curved the loss is in rows from `start` where the leap ended: derivatives do not tell it where rows have
    weights, or the loss is that of counts or amounts.

    Reveals: one curvature per row (for softmax one for each class) to every party. With the derivative it gives a row's
    weight away, and for counts the label and the expected count.
    """

    epoch: int
    survey: int
    start: int
    second: np.ndarray


class Taken(Message, frozen=True):
    """This party has taken the table of a survey.

    Reveals: progress, to the chair.
    """

    epoch: int
    survey: int


class GoOn(Message, frozen=True):
    """All but the late have taken the table.

    Reveals: progress, to every party.
    """

    epoch: int
    survey: int


class Certified(Message, frozen=True):
    """How good the survey's model is.

    Reveals: the training objective and the gradient's norm there, to every party.
    """

    epoch: int
    survey: int
    objective: float
    gradient_norm: float
    gap: float  # NaN where the problem has no certificate
    best: int

    @property
    def certificate(self) -> float:
        """The duality gap, or the gradient norm where there is none."""
        return self.gradient_norm if isnan(self.gap) else self.gap


MESSAGES = (Mark, Leap, Curved, TablePart, Taken, GoOn, Certified)
