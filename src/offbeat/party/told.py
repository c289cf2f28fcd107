"""What this party was told that moves its block, as one digest for each teller.

Whoever sends derivatives, leaps and tables moves the blocks of the others. If it could tell them different things, it
could keep all blocks but one at zero and read that one's share off an honest total. So every party keeps a digest of
all that a teller has said to everybody, in order, and the masks of an answer are bound to the digest as it was when the
question came (`privacy/masks.py`). Parties that were told the same have the same digest there, however far behind one
of them is with its work: messages of one sender arrive in the order they were sent.

What the rows of a survey are summed at follows from its mark and from what the chair had told before; so answers about
it are bound to the chair's digest at the mark as well, whoever asks.

In rounds, label holders speak in turn: at a question, and at a mark, all parties have heard the same of all of them.
So where several hold labels, answers are bound to that as well, and a model to what had been told when it was taken.
Without rounds, parties that keep to the protocol hear two tellers in different orders; only the asker's words can bind.

A new roster begins all digests anew: whoever was off the old one has not heard what it was told.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from offbeat.party.contract import Message, PartyName
from offbeat.party.expected import refuse

NOTHING = bytes(32)
NOTED_MOST = 8192

Key = tuple[int, int, int]
"""Which question: (kind, survey, first)."""


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself: arrays, whose type and length whoever uses them checks, and numbers of
    numpy."""
    return value.tobytes() if isinstance(value, np.ndarray) else value.item()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


_last: tuple[bytes, Message | None, bytes] = (NOTHING, None, NOTHING)


def _following(head: bytes, body: Message) -> bytes:
    """The digest after one more word. Where parties share a process, all of them hear the same object in turn: what it
    comes to is computed for the first one and kept for the others."""
    global _last
    before, same, after = _last
    if same is not body or before != head:
        after = sha256(head + _ENCODER.encode(body)).digest()
        _last = (head, body, after)
    return after


class Told:
    """One party's digests: `heads` by teller; `marks` of the chair's at the mark of a survey."""

    def __init__(self) -> None:
        self.heads: dict[PartyName, bytes] = {}
        self.marks: dict[int, bytes] = {}
        self.in_turn = (
            b""  # what label holders said in turn, as one digest; nothing where one alone speaks, or no turns are
        )
        self.at_mark: dict[int, bytes] = {}  # the same as it was at the mark of a survey
        self.noted: dict[PartyName, dict[Key, bytes]] = {}  # asker -> question not answered yet -> its head then
        self.best: tuple[PartyName, int, bytes] | None = None  # who named which survey's model the best; its head then
        self.last = b""  # of a run that has ended: all that whoever ended it has said, and which model is kept

    def hear(self, teller: PartyName, body: Message, in_turn: bool = False) -> None:
        """The teller has said this to everybody."""
        self.heads[teller] = _following(self.heads.get(teller, NOTHING), body)
        if in_turn:
            self.in_turn = _following(self.in_turn or NOTHING, body)

    def _head(self, teller: PartyName) -> bytes:
        head = self.heads.get(teller, NOTHING)
        return sha256(head + self.in_turn).digest() if self.in_turn else head

    def mark(self, teller: PartyName, survey: int, oldest: int) -> None:
        """The chair has marked this survey; answers about surveys from `oldest` on may still be due."""
        self.marks = {number: head for number, head in self.marks.items() if number >= oldest}
        self.marks[survey] = self._head(teller)
        if self.in_turn:
            self.at_mark[survey] = self.in_turn

    def name_best(self, chair: PartyName, best: int) -> None:
        """The chair has said which model is the best so far."""
        before = 0 if self.best is None else self.best[1]
        if best != before and not self.last:
            self.at_mark = {survey: head for survey, head in self.at_mark.items() if survey >= best}
            self.best = (chair, best, self.heads.get(chair, NOTHING))

    def end(self, teller: PartyName, best: int) -> None:
        """This party ends the run: the first word counts. Predictions by the model are bound to it; where the chair was
        lost, and another or nobody says that word, also to what the chair had told when it named the best model."""
        if self.last:
            return
        head = self.heads.get(teller, NOTHING)
        named = self.best[2] if self.best is not None and self.best[0] != teller else b""
        told = head + named + self.at_mark.get(best, b"") + f"{teller} keeps {best}".encode()
        self.last, self.best = sha256(told).digest(), None

    def note(self, asker: PartyName, key: Key) -> None:
        """A question has come; it may be answered later."""
        noted = self.noted.get(asker)
        if noted is None:
            noted = self.noted[asker] = {}
        if len(noted) >= NOTED_MOST:
            refuse(asker, "more questions than can be open")
        noted.setdefault(key, self._head(asker))

    def when_asked(self, asker: PartyName, key: Key) -> bytes:
        """What the masks of this answer are bound to. A share that is sent unasked is bound to what was told by now."""
        noted = self.noted.get(asker)
        head = noted.pop(key, None) if noted else None
        if head is None:
            head = self._head(asker)
        marked = self.marks.get(key[1]) if key[1] else None
        return head if marked is None else sha256(head + marked).digest()

    def snapshot(self) -> dict[str, Any]:
        return {
            "heads": dict(self.heads),
            "last": self.last,
            **({} if self.best is None else {"best": list(self.best)}),
            **({"in_turn": self.in_turn, "at_mark": [*self.at_mark.items()]} if self.in_turn else {}),
            "marks": [[survey, head] for survey, head in self.marks.items()],
            "noted": {asker: [[*key, head] for key, head in noted.items()] for asker, noted in self.noted.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.heads, self.marks, self.last = dict(state["heads"]), dict(state["marks"]), state["last"]
        self.in_turn, self.at_mark = state.get("in_turn", b""), dict(state.get("at_mark", ()))
        self.best = tuple(state["best"]) if "best" in state else None
        self.noted = {asker: {(k, s, f): head for k, s, f, head in rows} for asker, rows in state["noted"].items()}
