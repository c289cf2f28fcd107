"""The calls between daemons, and from an owner to its own: small requests over the same port and certificates.

A peer may propose, count, begin, report and halt; everything else is for the owner, who shows the party's own
certificate. An error at the other side arrives as the same type, in words that hold none of its data.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union

import msgspec

from offbeat import errors
from offbeat.errors import OffbeatError, PeerFailed
from offbeat.orgs.discreet import OWNER_TEXT_MOST, printable
from offbeat.orgs.durable import SECRET_BYTES

METHOD = "Control"
ENDED_PHASES = ("done", "failed", "refused", "stopped")
QUEUED = "queued"
"""The phase of a run that all have accepted and that waits until every party has a place for it."""
PAUSED = "paused"
"""In a run's progress: why it waits in the middle."""
CALL_WITHIN_S = 20.0


class CallBody(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what travels."""


class Request(CallBody, frozen=True):
    """Base of requests."""


class Answer(CallBody, frozen=True):
    """Base of answers."""


# -- between peers ----------------------------------------------------------------------------------------------------


RunName = Annotated[str, msgspec.Meta(max_length=120)]
Word = Annotated[str, msgspec.Meta(max_length=64)]
Sentence = Annotated[str, msgspec.Meta(max_length=2000)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Sizes = Annotated[dict[Word, Whole], msgspec.Meta(max_length=1000)]


class Ping(Request, frozen=True):
    pass


class Propose(Request, frozen=True):
    """Take part in this job? `salt` keys the ids' tokens; it is kept with the keys, not in the run folder."""

    run: RunName
    job: Annotated[str, msgspec.Meta(max_length=65536)]
    salt: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]


class Count(Request, frozen=True):
    """Have you a place for this run, which all have accepted? And how many ids do you bring to it? That binds: see
    `BeginRun`."""

    run: RunName


class BeginRun(Request, frozen=True, tag="Begin"):
    """Begin; `ids` is what every party said it brings. Nobody may bring more. `aligned`: the run whose alignment all
    parties have kept, if there is one."""

    run: RunName
    ids: Sizes
    aligned: Annotated[str, msgspec.Meta(max_length=120)] = ""


class HasBegun(Request, frozen=True, tag="UnderWay"):
    """Has this run begun? Asked of the initiator by a party that was restarted before it heard."""

    run: RunName


class Facts(CallBody, frozen=True):
    """What the initiator is entitled to know of a party's part in a run."""

    events: Whole = 0
    seconds: float = 0.0
    updates: Whole = 0
    bytes_sent: Whole = 0
    rows: Whole = 0
    digest: Annotated[str, msgspec.Meta(max_length=128)] = ""
    metrics: Annotated[dict[Word, float], msgspec.Meta(max_length=100)] = {}


class Report(Request, frozen=True):
    """A party tells the initiator how its part ended."""

    run: RunName
    verdict: Word
    reason: Sentence
    kind: Word = ""  # the error's type, if it was one
    facts: Facts = Facts()


class HaltRun(Request, frozen=True, tag="Halt"):
    run: RunName
    verdict: Word
    reason: Sentence


class OpenScoring(Request, frozen=True):
    """Open a standing scoring session (orgs/standing.py); the answer is a key. `without`: parties that do not answer
    and are left out, where every policy allows it."""

    run: RunName
    service: Word
    without: Annotated[list[Word], msgspec.Meta(max_length=1000)] = []


SignedKey = tuple[Annotated[bytes, msgspec.Meta(max_length=64)], Annotated[bytes, msgspec.Meta(max_length=256)]]


class ScoringKeys(Request, frozen=True):
    """Everybody's keys for the session, each with its owner's signature."""

    run: RunName
    service: Word
    keys: Annotated[dict[Word, SignedKey], msgspec.Meta(max_length=1000)]


class ScoreAsked(Request, frozen=True):
    """A question of the session: its number, and the tokens of the rows one after the other."""

    run: RunName
    service: Word
    number: Whole
    tokens: bytes


class Poll(Request, frozen=True):
    """Are there letters for me? Asked by a party that has no address of its own."""


class Reply(Request, frozen=True):
    number: int
    answer: bytes


# -- from the owner ---------------------------------------------------------------------------------------------------


class Submit(Request, frozen=True):
    job: str


class Status(Request, frozen=True):
    run: str


class ListRuns(Request, frozen=True):
    """Which runs are there, what was refused lately, and how often have rows been used?"""


class Stop(Request, frozen=True):
    run: str


class Decide(Request, frozen=True):
    """The owner accepts or refuses a proposal that waits for it (orgs/run_queue.py)."""

    run: str
    accept: bool
    by: Annotated[str, msgspec.Meta(max_length=200)]
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Predict(Request, frozen=True):
    """Score these rows together with the run's other parties."""

    run: str
    ids: list[str]


# -- answers ----------------------------------------------------------------------------------------------------------


class Done(Answer, frozen=True):
    pass


class Counted(Answer, frozen=True):
    """What a party has committed itself to: so many distinct ids, of the table as it is now. `aligned`: the run from
    which it has kept an alignment of the same parties by the same table; that the table is the same is told by it."""

    ids: Whole
    aligned: Annotated[str, msgspec.Meta(max_length=120)] = ""


class Begun(Answer, frozen=True):
    """The run is under way, with these numbers of ids and this alignment."""

    ids: Sizes
    aligned: Annotated[str, msgspec.Meta(max_length=120)] = ""


class Pong(Answer, frozen=True):
    name: str
    offbeat: str
    protocol: int
    roster: str
    time_s: float
    last: str = ""  # the run that began last here with whoever asks


class Awaited(Answer, frozen=True):
    """The policy allows it; the owner has yet to decide."""


class Queued(Answer, frozen=True):
    """There is no place for the run yet, and why."""

    why: Sentence


class Submitted(Answer, frozen=True):
    run: str
    awaited: list[str] = []  # parties whose owners decide by hand
    queued: str = ""  # why it waits for a place


class RunStatus(Answer, frozen=True):
    """One run as this party sees it; `parties` is what they reported, at the initiator."""

    run: str
    job: str
    initiator: str
    phase: str
    verdict: str = ""
    reason: str = ""
    kind: str = ""
    progress: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    parties: dict[str, str] = {}
    kept: bool = False  # of a run that did not end well: the best certified model is there all the same

    @property
    def ended(self) -> bool:
        return self.phase in ENDED_PHASES


class RefusedCall(CallBody, frozen=True):
    """A request that was refused, for the last time at `at`."""

    at: str
    peer: str
    request: str
    reason: str
    times: int = 1


class Runs(Answer, frozen=True):
    """`refusals`: the oldest first. So many rows have entered a sum, or may still in a run under way; the most used of
    them so often."""

    runs: list[RunStatus] = []
    refusals: list[RefusedCall] = []
    rows_used: int = 0
    most_used: int = 0


class Predicted(Answer, frozen=True):
    """Of several classes, scores and probabilities have one number for each; `numbers`: the scores are what is
    predicted, not classes."""

    scores: list[Any]
    known: list[bool]
    probabilities: list[Any] | None
    classes: list[Any] | None
    without: list[str]
    numbers: bool = False

    def rows(self, ids: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
        """(id, score, probability); a row that not all parties know has neither."""
        chances: Sequence[Any] = self.probabilities or [None] * len(ids)
        for id_, score, known, chance in zip(ids, self.scores, self.known, chances, strict=True):
            yield (id_, score, chance) if known else (id_, None, None)


def cell_text(value: Any) -> str:
    """As a file of scores has it: nothing where there is none, of several classes all in one cell."""
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


class ScoringKey(Answer, frozen=True):
    public: bytes
    signature: bytes


class ScoreWords(Answer, frozen=True):
    """Two words for each row, masked, least byte first."""

    words: bytes


class NotOpen(Answer, frozen=True):
    """This party knows no such scoring session; it may have been restarted."""


class Letters(Answer, frozen=True):
    letters: list[tuple[int, bytes]]


class Failure(Answer, frozen=True):
    kind: str
    message: str


_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS, _ANSWERS = (
    msgspec.msgpack.Decoder(Union[tuple(base.__subclasses__())])  # noqa: UP007  (built from a tuple)
    for base in (Request, Answer)
)


def encode(packet: CallBody) -> bytes:
    return _ENCODER.encode(packet)


def decode_request(raw: bytes) -> Request:
    try:
        request: Request = _REQUESTS.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise PeerFailed(f"a request of {len(raw)} bytes is not one of ours: {problem}") from problem
    return request


def decode_answer(raw: bytes) -> Answer:
    """The answer, or the error that it stands for."""
    try:
        answer: Answer = _ANSWERS.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise PeerFailed(f"an answer of {len(raw)} bytes is not one of ours: {problem}") from problem
    if isinstance(answer, Failure):
        raise error_named(answer.kind, printable(answer.message, OWNER_TEXT_MOST))
    return answer


def error_named(kind: str, message: str) -> OffbeatError:
    """The error as it was at the other side; an unknown kind is a failed peer."""
    found = getattr(errors, kind, PeerFailed)
    known = isinstance(found, type) and issubclass(found, OffbeatError)
    error: OffbeatError = found(message) if known else PeerFailed(message)
    return error
