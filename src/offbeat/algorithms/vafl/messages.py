"""What VAFL's server and clients say to each other, and what each message gives away."""

import numpy as np

from offbeat.party.contract import Message
from offbeat.party.protocol import Goodbye, Line, messages_of


class Upload(Message, frozen=True, gc=False):
    """A client's embeddings of some rows. `wanted`: a derivative is asked for; `asked`: the request it answers;
    `oldest`: the client waits for no answer to an earlier release than this.

    Reveals: to the server, one embedding of each row: raw linear images or features of the client's columns, unless
    private mode clips them and adds counted noise; which rows the client is working on.
    """

    release: int
    version: int
    asked: int
    wanted: bool
    rows: np.ndarray
    embedding: np.ndarray
    oldest: int = 0


class Gradient(Message, frozen=True, gc=False):
    """The derivative of each row's loss in the client's embedding, and how old the others' embeddings were.

    Reveals: to the client, with an additive head the label of every row by the derivative's signs, unless
    label_dp_epsilon is set; of a regression the prediction so far less the target, at first the target itself. With
    other heads the same by the size and direction of the derivative, with high probability.

    With label_dp_epsilon: to the client, with an additive head the answer that was drawn at random for the row's label,
    the same one every time, not the label; with other heads that answer with high probability.
    """

    release: int
    iteration: int
    lag_mean: float
    lag_max: int
    derivative: np.ndarray


class Noted(Message, frozen=True, gc=False):
    """The server has what needs no derivative, or needs it no more. `begin`: everyone's rows are there, training may
    start.

    Reveals: nothing but that it arrived.
    """

    release: int
    begin: bool


class AnswerWanted(Message, frozen=True, gc=False):
    """A client asks what has become of a release that was not answered in its time. It is far shorter than the release.

    Reveals: to the server, that the client waits.
    """

    release: int


class UnderWay(Message, frozen=True, gc=False):
    """What has this number arrived, and its answer is being worked on: a release at the server, a request at a client.

    Reveals: nothing but that it arrived.
    """

    number: int


class ReleaseWanted(Message, frozen=True, gc=False):
    """The server does not have this release: the client is to send it again, byte for byte.

    Reveals: nothing but that it did not arrive.
    """

    release: int


class Refresh(Message, frozen=True, gc=False):
    """The server asks for fresh embeddings of rows that have grown too old.

    Reveals: to the client, that another client is working on these rows.
    """

    request: int
    rows: np.ndarray


class Refreshed(Message, frozen=True, gc=False):
    """Fresh embeddings; rows whose cap is reached are left out.

    Reveals: to the server, one more embedding of each row (a release like an upload).
    """

    request: int
    release: int
    version: int
    rows: np.ndarray
    embedding: np.ndarray


class Ask(Message, frozen=True, gc=False):
    """Synchronous variant: every client is to upload these rows. `anew`: drop what earlier asks left open.

    Reveals: to the clients, which rows are next.
    """

    request: int
    anew: bool
    rows: np.ndarray


class Resting(Message, frozen=True, gc=False):
    """A client will upload no more: its records' caps are reached.

    Reveals: to the server, that the client's budget is spent.
    """

    release: int
    reason: str


class PredictAsked(Message, frozen=True, gc=False):
    """The server asks for the embeddings of rows to be predicted.

    Reveals: to the clients, which rows are predicted.
    """

    request: int
    start: int
    stop: int


class PredictGiven(Message, frozen=True, gc=False):
    """Embeddings of rows to be predicted.

    Reveals: to the server, one embedding of each row to be predicted, clipped and noisy in private mode.
    """

    request: int
    release: int
    embedding: np.ndarray


class Resume(Message, frozen=True, gc=False):
    """A client has come back: the last release number it remembers.

    Reveals: to the server, that the client restarted.
    """

    release: int


class Resumed(Message, frozen=True, gc=False):
    """How many releases the client has forgotten, the number after which its next ones begin, whether training has.

    Reveals: nothing the client did not send itself.
    """

    first: int
    forgotten: int
    begun: bool


class StopWanted(Message, frozen=True, gc=False):
    """A client's owner wants the run to end. The server ends it and answers with `Halt`.

    Reveals: to the server, that this owner wants the run to end.
    """


class Halt(Message, frozen=True, gc=False):
    """Training is over.

    Reveals: to the clients, why and after how many head updates.
    """

    verdict: str
    reason: str
    iteration: int


SERVER, CLIENT = "server", "client"
PROTOCOL = (
    Line(Upload, CLIENT, SERVER, "when it has embedded rows: those of its next batch, or those asked for in rounds"),
    Line(Noted, SERVER, CLIENT, "as the answer to what needs no derivative"),
    Line(Ask, SERVER, CLIENT, "in rounds: when the next rows are due"),
    Line(Refresh, SERVER, CLIENT, "when embeddings of another client's batch have grown too old"),
    Line(Refreshed, CLIENT, SERVER, "as the answer"),
    Line(Gradient, SERVER, CLIENT, "as the answer to an Upload"),
    Line(PredictAsked, SERVER, CLIENT, "when rows are to be predicted"),
    Line(PredictGiven, CLIENT, SERVER, "as the answer"),
    Line(AnswerWanted, CLIENT, SERVER, "when a release was not answered in its time"),
    Line(UnderWay, SERVER, CLIENT, "as the answer, where the derivative is being worked on"),
    Line(ReleaseWanted, SERVER, CLIENT, "as the answer, where the release never came"),
    Line(UnderWay, CLIENT, SERVER, "when a request comes again that is being worked on"),
    Line(Resume, CLIENT, SERVER, "when it is back after a crash"),
    Line(Resumed, SERVER, CLIENT, "as the answer"),
    Line(Resting, CLIENT, SERVER, "when its records have left as often as they may"),
    Line(StopWanted, CLIENT, SERVER, "when its owner stops it"),
    Line(Halt, SERVER, CLIENT, "when the run is over"),
    Line(Goodbye, CLIENT, SERVER, "when it has heard that"),
)
MESSAGES = messages_of(PROTOCOL)
