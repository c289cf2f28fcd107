"""What went over a link, so that others can check it later: a chain of hashes in each direction, signed by both ends.

Each message changes the head of its direction's chain: SHA-256 over the head before, the number and the message's
bytes. Now and then, and at the end, the receiver signs the head of what is in its log (a receipt). The sender compares
it with its own head, signs the same, and sends that back. So both ends hold both signatures over one claim.

    Chain         one direction
    Chains        both directions of a link, and what both ends have signed of them; rebuilt from a log after a crash
    Transcript    the same with keys: makes, answers and checks receipts
    LinkAccount   one direction as a party's file tells it: RUN/transcripts/PARTY.json

No input or output here but the files.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from offbeat.errors import BadInput, PeerFailed
from offbeat.party.contract import PartyName
from offbeat.runtime.checkpoint import replace_durably

FORMAT = 1
FOLDER = "transcripts"
RECEIPT_EVERY = 1024  # messages: a receipt costs two signatures and two checks of one
HEADS_BEHIND = 1024  # heads that are kept of messages in the log, to compare with what comes again
ISSUED_MOST = 8
ANSWERS_FREE, ANSWER_EVERY, LAST_ANSWERS = 256, 64, 16
"""A peer's receipts that are looked at: so many, one more for so many messages, and so many of the last message."""
WRONG_MOST = 16

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Head = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(max_length=2048)]


class Direction(NamedTuple):
    """Whose messages to whom, in which run; `job` is the digest of what both sides believe that they are doing."""

    run: str
    job: str
    sender: PartyName
    receiver: PartyName

    @property
    def origin(self) -> bytes:
        """The head before the first message."""
        return hashlib.sha256(msgspec.json.encode(["offbeat chain", FORMAT, *self])).digest()


class Receipt(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The messages up to `number` have this head. `missed`: so many of them were forgotten by their sender, while it
    held the receiver for lost, and never came; `gaps`: a digest of where, and of the heads before. `last`: the sender
    has said that no more will follow."""

    number: Number
    missed: Number
    gaps: Annotated[bytes, msgspec.Meta(max_length=32)]
    last: bool
    head: Head
    signature: Signature

    def content(self, of: Direction) -> bytes:
        """What is signed."""
        return msgspec.json.encode(["offbeat receipt", FORMAT, *of, self.number, self.last, *self.claim])

    @property
    def claim(self) -> tuple[int, str, str]:
        """What it says of the messages up to its number."""
        return self.missed, self.gaps.hex(), self.head.hex()


class Seal(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """What travels with an acknowledgement: a receipt of the peer's messages, and the peer's receipt of ours, signed
    by us."""

    receipt: Receipt | None = None
    confirmed: Receipt | None = None


class Signed(msgspec.Struct, frozen=True, gc=False):
    """A receipt with the signatures of both ends."""

    receipt: Receipt  # signed by the receiver
    by_sender: Signature


def next_head(head: bytes, number: int, frame: bytes) -> bytes:
    return hashlib.sha256(b"".join((head, number.to_bytes(8, "little"), frame))).digest()


class Chain:
    """One direction's messages so far, and the heads at the last of them."""

    def __init__(self, origin: bytes) -> None:
        self.head, self.number = origin, 0
        self._heads, self._oldest = {0: origin}, 0
        self._gaps = [(0, 0, b"")]  # (number, messages up to it that never came, digest of where)

    def add(self, number: int, frame: bytes) -> None:
        self.head = self._heads[number] = next_head(self.head, number, frame)
        self.number = number

    def jump(self, number: int, head: bytes) -> None:
        """The messages up to this number will not come; their sender says what the head is behind them."""
        _, missed, gaps = self._gaps[-1]
        missed += number - self.number
        self._gaps.append((number, missed, next_head(gaps + self.head, self.number, number.to_bytes(8, "little"))))
        self.number, self.head = number, head
        self._heads[number] = head

    def at(self, number: int) -> bytes | None:
        """The head at a number; None where it is not known any more, or not yet."""
        return self._heads.get(number)

    def gaps(self, number: int) -> tuple[int, bytes]:
        """(how many of the messages up to this number never came, digest of where and of the heads before)."""
        return next((missed, gaps) for at, missed, gaps in reversed(self._gaps) if at <= number)

    def keep_from(self, number: int) -> None:
        """Forget the heads before this number."""
        number = min(number, self.number)
        if number - self._oldest > len(self._heads):  # a jump, perhaps a very long one
            self._heads = {at: head for at, head in self._heads.items() if at >= number}
            self._oldest = number
        while self._oldest < number:
            self._heads.pop(self._oldest, None)
            self._oldest += 1
        while len(self._gaps) > 1 and self._gaps[1][0] <= number:
            del self._gaps[0]

    def went(self, number: int, frame: bytes) -> bool:
        """Whether this is the message of this number, as far as that is still known."""
        before, head = self.at(number - 1), self.at(number)
        return before is None or head is None or next_head(before, number, frame) == head

    def heads(self) -> dict[int, bytes]:
        return dict(self._heads)

    def resume(self, heads: dict[int, bytes], gaps: tuple[int, bytes] = (0, b"")) -> None:
        """Go on behind the last of these."""
        self._heads, self._oldest = heads, min(heads)
        self.number = max(heads)
        self.head = heads[self.number]
        self._gaps = [(0, *gaps)]


class Past(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a checkpoint keeps of a link's chains."""

    sent: dict[int, bytes]
    received: tuple[int, bytes]
    gaps: tuple[int, bytes]
    forgotten: int
    signed_out: Signed | None
    signed_into: Signed | None


class Chains:
    """Both directions of one link. `forgotten`: messages that were not kept any longer for a peer that was lost."""

    def __init__(self, run: str, job: str, me: PartyName, peer: PartyName) -> None:
        self.out, self.into = Direction(run, job, me, peer), Direction(run, job, peer, me)
        self.sent, self.received = Chain(self.out.origin), Chain(self.into.origin)
        self.forgotten = 0
        self.signed_out: Signed | None = None
        self.signed_into: Signed | None = None

    def forget(self, number: int) -> None:
        """The message of this number is not kept any longer, though the peer may not have had it."""
        self.forgotten += 1
        self.sent.keep_from(number)

    def past(self, durable: int) -> bytes:
        """As of the message up to which the log goes."""
        head = self.received.at(durable)
        assert head is not None, "heads of what is not in the log yet are kept"
        gaps, sent = self.received.gaps(durable), self.sent.heads()
        past = Past(sent, (durable, head), gaps, self.forgotten, self.signed_out, self.signed_into)
        return msgspec.msgpack.encode(past)

    def resume(self, past: bytes) -> None:
        kept = msgspec.msgpack.decode(past, type=Past)
        self.sent.resume(kept.sent)
        self.received.resume(dict([kept.received]), kept.gaps)
        self.forgotten, self.signed_out, self.signed_into = kept.forgotten, kept.signed_out, kept.signed_into

    def accounts(self, durable: int) -> "list[LinkAccount]":
        """What this end tells of both directions: all that it sent, and what of the peer's is in its log."""
        head = self.received.at(durable) or b""
        return [
            LinkAccount(self.out.sender, self.out.receiver, self.sent.number, self.sent.head, self.signed_out),
            LinkAccount(self.into.sender, self.into.receiver, durable, head, self.signed_into),
        ]


class Notary(NamedTuple):
    """This party's key, and a way to check everybody's signatures."""

    sign: Callable[[bytes], bytes]
    signed: Callable[[PartyName, bytes, bytes], bool]


class Transcript:
    """One link's chains, with the signatures of both ends. Not thread-safe."""

    def __init__(self, chains: Chains, notary: Notary) -> None:
        self.chains = chains
        self.refused = 0  # receipts that could not be answered: wrong signatures and wrong claims
        self._notary = notary
        self._issued: dict[tuple[int, bool], Receipt] = {}
        self._told = (0, False)  # what the newest receipt was of
        self._wrong = 0  # confirmations under signatures that nobody made
        self._looked_at = [0, 0]  # the peer's receipts whose signatures were checked: usual ones, last ones
        self._owed: Receipt | None = None

    @property
    def settled(self) -> bool:
        """Both ends have signed both directions to their ends, and each has heard so."""
        both = (self.chains.signed_out, self.chains.signed_into)
        return self._owed is None and all(signed is not None and signed.receipt.last for signed in both)

    def again(self) -> None:
        """What travelled may be lost: receipts that were not confirmed are made again."""
        self._told = (0, False) if self.chains.signed_into is None else reach(self.chains.signed_into)

    def due(self, durable: int, *, now: bool, last: bool) -> bool:
        """Whether there is something to say; `now`: not only when much has come."""
        number, ended = self._told
        much = durable - number >= (1 if now else RECEIPT_EVERY)
        return much or self._owed is not None or (last and not ended)

    def seal(self, durable: int, *, now: bool, last: bool) -> Seal | None:
        """`durable`: the peer's messages up to this number are in our log; `last`: it will send no more."""
        if not self.due(durable, now=now, last=last):
            return None
        owed, self._owed = self._owed, None
        number, ended = self._told
        fresh = durable > number or (last and not ended)
        return Seal(self._receipt(durable, last) if fresh else None, owed)

    def _receipt(self, durable: int, last: bool) -> Receipt:
        head = self.chains.received.at(durable)
        assert head is not None, "heads of what is not in the log yet are kept"
        claim = Receipt(durable, *self.chains.received.gaps(durable), last, head, b"")
        receipt = self._signed(claim, self.chains.into)
        self._told = (durable, last)
        self._issued[self._told] = receipt
        if len(self._issued) > ISSUED_MOST:
            del self._issued[next(iter(self._issued))]
        return receipt

    def _signed(self, claim: Receipt, of: Direction) -> Receipt:
        return msgspec.structs.replace(claim, signature=self._notary.sign(claim.content(of)))

    def heard(self, seal: Seal, *, done: bool) -> None:
        """`done`: we have said that we send no more."""
        if seal.receipt is not None:
            self._answer(seal.receipt, done)
        if seal.confirmed is not None:
            self._take(seal.confirmed)

    def _answer(self, receipt: Receipt, done: bool) -> None:
        """A receipt of our messages: compare it with our own chain, and sign the same."""
        of, sent = self.chains.out, self.chains.sent
        mine, before = sent.at(receipt.number), self.chains.signed_out
        if mine is None or (before is not None and receipt.number < before.receipt.number):
            return  # an old one
        if receipt.head != mine:
            raise PeerFailed(
                f"'{of.receiver}' acknowledges other messages than '{of.sender}' sent, somewhere up to number "
                f"{receipt.number}: one of the two run folders was changed. `offbeat audit --verify` tells more."
            )
        before = self.chains.signed_out
        if before is not None and (receipt.number, receipt.last) <= reach(before):
            if receipt.number == before.receipt.number and receipt.claim != before.receipt.claim:
                self.refused += 1  # two claims about the same messages would show the sender as one that lied
            elif (receipt.number, receipt.last) == reach(before):  # the answer was lost
                self._owed = msgspec.structs.replace(before.receipt, signature=before.by_sender)
            return
        if not self._looks_at(receipt):
            return
        whole = done and receipt.number == sent.number
        gaps_fit = receipt.missed <= self.chains.forgotten and bool(receipt.missed) == bool(receipt.gaps)
        same = before is None or before.receipt.number < receipt.number or before.receipt.claim == receipt.claim
        fits = gaps_fit and same and (whole or not receipt.last)
        if not fits or not self._notary.signed(of.receiver, receipt.content(of), receipt.signature):
            self.refused += 1
            return
        self._owed = self._signed(receipt, of)
        self.chains.signed_out = _newer(self.chains.signed_out, Signed(receipt, self._owed.signature))

    def _looks_at(self, receipt: Receipt) -> bool:
        """Each costs two signatures' work: a peer that sends more than a run needs is not answered each time. Later
        ones cover what is left out."""
        most = LAST_ANSWERS if receipt.last else ANSWERS_FREE + receipt.number // ANSWER_EVERY
        self._looked_at[receipt.last] += 1
        return self._looked_at[receipt.last] <= most

    def _take(self, confirmed: Receipt) -> None:
        """Our receipt, signed by the sender of the messages. Each is taken once; few wrong signatures are checked."""
        of, place = self.chains.into, (confirmed.number, confirmed.last)
        issued = self._issued.get(place)
        if issued is None or issued.claim != confirmed.claim or self._wrong >= WRONG_MOST:
            self.refused += 1
        elif not self._notary.signed(of.sender, confirmed.content(of), confirmed.signature):
            self.refused, self._wrong = self.refused + 1, self._wrong + 1
        else:
            self._issued.pop(place)
            self.chains.signed_into = _newer(self.chains.signed_into, Signed(issued, confirmed.signature))


def _newer(before: Signed | None, after: Signed | None) -> Signed | None:
    found = [signed for signed in (after, before) if signed is not None]  # of equal ones the later
    return max(found, key=reach, default=None)


def reach(signed: Signed) -> tuple[int, bool]:
    """How far it goes."""
    return signed.receipt.number, signed.receipt.last


# -- files ------------------------------------------------------------------------------------------------------------


class LinkAccount(msgspec.Struct, frozen=True):
    """One direction as one end tells it: how far it went, with which head, and what both ends have signed."""

    sender: PartyName
    receiver: PartyName
    number: int
    head: bytes
    signed: Signed | None = None


class TranscriptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a party's file holds. `certificates`: by party, in PEM, of the whole roster."""

    format: int
    run: str
    job: str
    party: PartyName
    certificates: dict[PartyName, str]
    authorities: tuple[str, ...]
    links: tuple[LinkAccount, ...]

    def write(self, folder: Path) -> None:
        """Signatures that an earlier life of the party has written are not lost."""
        path = transcript_path(folder, self.party)
        path.parent.mkdir(exist_ok=True)
        whole = self._with(read_transcript(path)) if path.is_file() else self
        content = msgspec.json.format(msgspec.json.encode(whole))
        if not path.is_file():  # at once: who is killed while the disk is waited for has left the session all the same
            early = path.with_name(path.name + ".new")
            early.write_bytes(content)
            early.replace(path)
        replace_durably(path, content)

    def _with(self, before: "TranscriptFile") -> "TranscriptFile":
        if (before.run, before.job, before.certificates) != (self.run, self.job, self.certificates):
            return self
        known = {(link.sender, link.receiver): link.signed for link in before.links}
        links = [
            msgspec.structs.replace(link, signed=_newer(known.get((link.sender, link.receiver)), link.signed))
            for link in self.links
        ]
        return msgspec.structs.replace(self, links=tuple(links))


def transcript_path(session: Path, party: PartyName) -> Path:
    return session / FOLDER / f"{party}.json"


def read_transcript(path: Path) -> TranscriptFile:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=TranscriptFile)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"{path} is not a transcript: {problem}. The file is damaged or was edited.") from problem
    if found.format != FORMAT:
        raise BadInput(f"{path} has format {found.format}; this version of offbeat reads {FORMAT}.")
    return found


def transcript_paths(run: Path) -> list[Path]:
    """Those of all sessions of a run: alignment, training and test have a folder each."""
    return sorted([*run.glob(f"{FOLDER}/*.json"), *run.glob(f"*/{FOLDER}/*.json")])


def unsigned_peers(run: Path, me: PartyName) -> list[PartyName]:
    """With whom not all sessions are signed to their ends, by this party's transcripts."""
    links = [link for path in transcript_paths(run) for link in read_transcript(path).links]
    open_ends = [link for link in links if link.signed is None or not link.signed.receipt.last]
    return sorted({link.sender if link.receiver == me else link.receiver for link in open_ends})


def digests_of(paths: Iterable[Path], run: Path) -> dict[str, str]:
    """By path within the run folder: the SHA-256 of a transcript, which a run's record keeps."""
    return {path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
