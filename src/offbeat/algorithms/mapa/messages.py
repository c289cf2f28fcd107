"""What a cloud and its edges say to each other, and what each message gives away."""

import numpy as np

from offbeat.party.contract import Message, PartyName
from offbeat.party.expected import expect
from offbeat.party.protocol import Goodbye, Line, messages_of

CLOUD, EDGE = "cloud", "edge"  # the roles; the cloud is called so too
NUMBERS_END = 2**62  # numbers of uploads and versions are below: they and their successors fit the wire


class Hello(Message, frozen=True):
    """An edge joins, or is back, and asks for the model.

    Reveals: to the cloud, that the edge takes part and how much noise it adds for a clip of one: its privacy level and,
    as the noise is fitted to it, its number of rows.
    """

    noise_per_clip: float  # E|noise|^2 of an upload, for a clip of one
    uploads: int  # so far, as far as the edge remembers


class Model(Message, frozen=True):
    """The cloud's model.

    Reveals: to one edge, a model trained on all edges' uploads; as private as those uploads are.
    """

    parameters: np.ndarray
    version: int
    clip: float
    stage: int
    answers: int  # the last upload the cloud has seen of this edge
    lag: int  # how late that upload was


class Upload(Message, frozen=True):
    """One released gradient.

    Reveals: to the cloud, the gradient of secret rows at `version`, clipped and noisy as the edge's mechanism says: in
    sound mode whole numbers times a public scale, and what its ledger accounts for; in paper mode or without noise
    possibly the rows themselves.
    """

    gradient: np.ndarray
    version: int  # of the model that it was computed with
    number: int  # of this edge's uploads, from 1
    fraction_within: float  # of rows within the clip, from a noisy whole number; or -1


class Leaving(Message, frozen=True):
    """The edge's budget is spent, or its owner has stopped it.

    Reveals: to the cloud, that the edge will send no more, and why; the number of its uploads is not secret.
    """

    uploads: int  # so far
    stopped: bool = False  # by its owner


class Halt(Message, frozen=True):
    """The cloud has all it wanted.

    Reveals: to an edge, that the run is over and why.
    """

    verdict: str
    reason: str


PROTOCOL = (
    Line(Hello, EDGE, CLOUD, "when it joins or is back, and again until it is answered"),
    Line(Model, CLOUD, EDGE, "as the answer to Hello and to every Upload"),
    Line(Upload, EDGE, CLOUD, "when it has worked on the model that came, and again until it is answered"),
    Line(Leaving, EDGE, CLOUD, "when its budget is spent, or its owner stops it"),
    Line(Halt, CLOUD, EDGE, "when the run is over; to an edge that leaves, at once"),
    Line(Goodbye, EDGE, CLOUD, "when it has heard that"),
)
MESSAGES = messages_of(PROTOCOL)


def expect_number(sender: PartyName, what: str, number: int) -> None:
    expect(0 <= number < NUMBERS_END, sender, f"the {what} number {number}")
