"""A standing scoring session: keys are agreed once, and from then on a question is one round trip.

    asker -> each   OpenScoring    each answers with a public key for this session, signed with its certificate's key
    asker -> each   ScoringKeys    all signed keys, which each checks against its roster
    asker -> each   ScoreAsked     a number and the rows' tokens; each answers with its words of the sum, masked

The sum is that of `predict.py`. The asker carries the keys of the others to each other: the signatures keep it from
putting keys of its own in their place. Masks belong to one session, one question number and the tokens in their order.
A number is answered once. So parties that were asked different things give words that do not cancel.

A session lives in memory: whoever was restarted says that it knows none, and the asker opens another. Rows are counted
in every ledger before their words or scores leave, and every question is held to the policy of its moment.
"""

import itertools
import logging
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import MaskReuse, NotYet, OutOfRange, PeerFailed, Refused
from offbeat.learning.scores import class_probabilities, log_link, probabilities
from offbeat.orgs import control
from offbeat.orgs.control import Answer, Predicted, Request
from offbeat.orgs.lines import LineBroken
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_prediction
from offbeat.orgs.predict import scores_from, words_in_all, words_of
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnModel, read_model
from offbeat.orgs.runs import Run
from offbeat.orgs.scoring import TableScores
from offbeat.orgs.tables import OwnTables
from offbeat.orgs.tokens import TOKEN_BYTES, split_tokens, tokens_of
from offbeat.orgs.train import sums_of
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import NetMask, Once, PairKeys, pair_of, range_limit, scale_of
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session is for; all parties have the same."""

    run: str
    service: str
    asker: str
    parties: tuple[str, ...]
    sums: SumOptions
    told: bytes = b""  # what the model's training was told: it is in the masks, and nobody says it

    def signed_by(self, name: str, public: bytes) -> bytes:
        """What a party signs: this key is its own, for this session and no other."""
        parts = ("offbeat scoring key", self.run, self.service, self.asker, *sorted(self.parties), name, public.hex())
        return "\n".join(parts).encode()


class Lane:
    """The session at one of the parties that are asked. `secret` is fresh, and forgotten with the session."""

    def __init__(self, terms: Terms, me: str, secret: bytes) -> None:
        terms.sums.check_roster(len(terms.parties))
        self.terms, self.me = terms, me
        self._secret, self._keys, self._used = secret, PairKeys(secret), Once()
        self._others = tuple(name for name in terms.parties if name not in (me, terms.asker))
        self._scale = scale_of(terms.sums.fraction_bits)
        self._limit = range_limit(len(terms.parties), terms.sums.fraction_bits)

    def offer(self, identity: Identity) -> tuple[bytes, bytes]:
        """(public key, signature)."""
        return self._keys.public, identity.sign(self.terms.signed_by(self.me, self._keys.public))

    def take(self, keys: Mapping[str, tuple[bytes, bytes]], members: Mapping[str, Member]) -> None:
        """The others' keys, each under its owner's signature."""
        for name in self._others:
            public, signature = keys.get(name, (b"", b""))
            if not members[name].signed(self.terms.signed_by(name, public), signature):
                raise Refused(f"'{self.me}' was given a key of '{name}' for scoring that '{name}' did not sign.")
            if self._keys.knows(name) and self._keys.publics[name] != public:
                raise Refused(f"'{self.me}' was given two keys of '{name}' for one scoring session.")
            try:
                self._keys.agree(name, public)
            except ValueError as problem:
                raise Refused(f"'{name}' signed {len(public)} bytes that are no key.") from problem

    def claim(self, number: int) -> None:
        """A question's number is used up before its rows are looked at."""
        if not all(self._keys.knows(name) for name in self._others):
            raise Refused(f"'{self.me}' has not been given the others' keys for scoring yet.")
        try:
            self._used.claim(number, number + 1)
        except MaskReuse:
            raise Refused(f"'{self.me}' has answered question {number} of this scoring session before.") from None

    def words(self, number: int, tokens: bytes, values: Floats, known: NDArray[np.bool_]) -> Words:
        """This party's words for a claimed question, under its masks."""
        context = self._context(number, tokens)
        lacking = sha256(b"rows that are lacking\0" + self._secret + context).digest()[:16]
        words = words_of(values, known, lacking, scale=self._scale, limit=self._limit)
        keys = {name: self._keys.stream_key(name, context + pair_of(self.me, name)) for name in self._others}
        plus = [key for name, key in keys.items() if self.me < name]
        minus = [key for name, key in keys.items() if self.me > name]
        masked: Words = words + NetMask(plus, minus, len(words), len(words)).take(0, 1, len(words))
        return masked

    def _context(self, number: int, tokens: bytes) -> bytes:
        terms = self.terms
        parts = ("scoring", terms.run, terms.service, terms.asker, *sorted(terms.parties), number)
        return repr((*parts, terms.told, sha256(tokens).hexdigest())).encode()


log = logging.getLogger("offbeat.party")

LANES_OF_ONE = 8  # sessions that one asker may have; its oldest goes first
SESSIONS_KEPT = 64  # of our own, for as many runs
CALLS_OPEN_MOST = 32
MODELS_KEPT = 8
ENDS_WITHIN_S, ASK_AGAIN_S = 20.0, 0.2  # how long the others may take to end a run that has ended here
T = TypeVar("T")
Which = tuple[str, tuple[str, ...]]
"""A session by its run and whom it leaves out."""
Call = Callable[[str, Request], Answer]


class KeptModels:
    """This party's parts of the models of ended runs, and its rows as a prediction may see them."""

    def __init__(self, home: Home, tables: OwnTables, ledger: RowLedger) -> None:
        self._home, self._tables, self._ledger = home, tables, ledger
        self._models: OrderedDict[str, OwnModel] = OrderedDict()
        self._lock = threading.Lock()

    def refuse_untrained(self, run: Run) -> None:
        if not run.status.ended:
            raise NotYet(
                f"run '{run.run}' has not ended at '{self._home.name}' yet: it is '{run.status.phase}' there, and only "
                "the model of a run that has ended predicts."
            )
        if run.status.phase != "done" and not run.status.kept:
            raise Refused(
                f"run '{run.run}' is '{run.status.phase}' at '{self._home.name}', and only the model of a run that "
                "ended well, or was stopped after a certificate, predicts. Submit the job again."
            )

    def scorer(self, run: Run, prediction: str, asker: str) -> TableScores:
        """This party's rows as one prediction may see them, each counted under the prediction's name."""
        kept, model, what = self._tables.current(), self.model(run), f"{run.run}/{prediction}"
        return TableScores(self._home, run, kept, model, self._ledger, what=what, asker=asker)

    def model(self, run: Run) -> OwnModel:
        """The trained block of a finished run, which no longer changes; the last few are kept in memory."""
        with self._lock:
            model = self._models.pop(run.run, None) or read_model(run.private, "model")
            self._models[run.run] = model
            while len(self._models) > MODELS_KEPT:
                self._models.popitem(last=False)
            return model

    def told(self, run: Run, scores: Floats, known: NDArray[np.bool_], without: Sequence[str] = ()) -> Predicted:
        """A row that not everybody knows has no score, rather than a wrong one."""
        model, where = run.job.model, known if scores.ndim == 1 else known[:, None]
        sure, chances = np.where(where, scores, 0.0), None
        if model.loss in ("logistic", "softmax"):
            chances = (probabilities(sure, model.loss) if scores.ndim == 1 else class_probabilities(sure)).tolist()
        shown = np.where(where, log_link(sure) if run.job.loss.grows else sure, np.nan).tolist()
        classes, numbers = self.model(run).classes, model.task == "regression"
        listed = None if classes is None else list(classes)  # who holds no labels does not know their names
        return Predicted(shown, known.tolist(), chances, listed, list(without), numbers)


class Answering:
    """The sessions of peers that ask this party."""

    def __init__(self, home: Home, identity: Identity, roster: PinnedRoster, kept: KeptModels) -> None:
        self._home, self._identity, self._kept = home, identity, kept
        self.roster = roster
        self._lanes: OrderedDict[tuple[str, str], Lane] = OrderedDict()
        self._lock = threading.Lock()
        self.rows: Counter[str] = Counter()  # asked, by asker

    def open(self, run: Run, peer: str, request: control.OpenScoring) -> Answer:
        self._refuse(run, peer, 1)
        told = self._kept.model(run).told
        terms = Terms(run.run, request.service, peer, self._parties(run, peer, request.without), self._sums(run), told)
        if "pairwise" not in self._home.config.policy.secure_sum:
            raise Refused(f"'{self._home.name}' allows no pairwise masks (secure_sum), which scoring uses.")
        lane = Lane(terms, self._home.name, os.urandom(32))
        with self._lock:
            if (peer, request.service) in self._lanes:
                raise Refused(f"'{peer}' has opened the scoring session '{request.service}' before.")
            self._lanes[peer, request.service] = lane
            of_peer = [key for key in self._lanes if key[0] == peer]
            for oldest in of_peer[:-LANES_OF_ONE]:
                del self._lanes[oldest]
        log.info("run %s: '%s' has opened a scoring session", run.run, peer)
        return control.ScoringKey(*lane.offer(self._identity))

    def _parties(self, run: Run, peer: str, without: list[str]) -> tuple[str, ...]:
        """Who takes part. Whoever is left out has no part in the sum: the policy must allow that."""
        if without and not self._home.config.policy.predict_without:
            raise Refused(f"'{self._home.name}' does not predict without a party (predict_without).")
        if not set(without) <= set(run.job.parties) - {peer, self._home.name}:
            raise Refused(f"'{peer}' leaves out {without} of a prediction by {list(run.job.parties)}.")
        return tuple(name for name in run.job.parties if name not in without)

    def _sums(self, run: Run) -> SumOptions:
        return sums_of(run.job, self._home.config.policy.parties_least)

    def take_keys(self, run: Run, peer: str, request: control.ScoringKeys) -> Answer:
        lane = self._lane(run, peer, request.service)
        if lane is None:
            return control.NotOpen()
        lane.take(request.keys, {member.name: member for member in self.roster.members})
        return control.Done()

    def answer(self, run: Run, peer: str, request: control.ScoreAsked) -> Answer:
        lane, rows = self._lane(run, peer, request.service), len(request.tokens) // TOKEN_BYTES
        if lane is None:
            return control.NotOpen()
        if not rows or len(request.tokens) % TOKEN_BYTES:
            raise Refused(f"'{peer}' asked for the scores of {len(request.tokens)} bytes, which name no rows.")
        self._refuse(run, peer, rows)
        self._parties(run, peer, [name for name in run.job.parties if name not in lane.terms.parties])
        with self._lock:
            lane.claim(request.number)
            self.rows[peer] += rows
        tokens = split_tokens(request.tokens)
        scorer = self._kept.scorer(run, f"{request.service}/{request.number}", peer)
        values, known = scorer.scores(tokens)
        try:
            words = lane.words(request.number, request.tokens, values, known)
        except OutOfRange as problem:
            raise Refused(f"'{self._home.name}' cannot answer: {problem}") from problem
        return control.ScoreWords(words.astype("<u8").tobytes())

    def _refuse(self, run: Run, peer: str, rows: int) -> None:
        self._kept.refuse_untrained(run)
        refuse_prediction(self._home.config.policy, run.job, self._home.name, peer, rows)

    def _lane(self, run: Run, peer: str, service: str) -> Lane | None:
        with self._lock:
            lane = self._lanes.get((peer, service))
            if lane is None or lane.terms.run != run.run:
                return None
            self._lanes.move_to_end((peer, service))
            return lane


@dataclass(frozen=True, slots=True)
class ScoringSession:
    """An open session of ours."""

    service: str
    without: tuple[str, ...] = ()
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)


class Unanswered(PeerFailed):
    """A party has not answered. `broken`: it may have been restarted, and is worth another question."""

    def __init__(self, peer: str, why: str, broken: bool) -> None:
        super().__init__(why)
        self.peer, self.broken = peer, broken


class Asking:
    """This owner's own sessions, one for each run. `call` asks a peer over a connection that stays open."""

    def __init__(self, home: Home, kept: KeptModels, call: Call) -> None:
        self._home, self._kept, self._call = home, kept, call
        self._sessions: dict[Which, ScoringSession] = {}
        self._opening: defaultdict[Which, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CALLS_OPEN_MOST, "scoring")
        self.questions = self.rows = self.retries = 0

    def ask(self, run: Run, ids: Sequence[str]) -> Predicted:
        """Score these rows by one question to every party. Whoever does not answer is asked once more, under masks of
        another question, and then left out, where the policies allow that."""
        self._kept.refuse_untrained(run)
        outputs = run.job.loss.outputs
        if not ids:
            return self._kept.told(run, np.zeros((0, outputs) if outputs > 1 else 0), np.zeros(0, np.bool_))
        names, asked_again, without = tokens_of(ids, run.own.salt), set[str](), tuple[str, ...]()
        while True:
            try:
                return self._one_question(run, self._session((run.run, without), run), names)
            except Unanswered as problem:
                if problem.broken and problem.peer not in asked_again:
                    asked_again.add(problem.peer)
                elif self._home.config.policy.predict_without:
                    without = (*without, problem.peer)
                else:
                    raise
                log.info("run %s: a scoring question is asked again: %s", run.run, problem)
                with self._lock:
                    self.retries += 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _one_question(self, run: Run, session: ScoringSession, names: list[bytes]) -> Predicted:
        number = next(session.numbers)
        total = np.zeros(words_in_all(len(names), run.job.loss.outputs), np.uint64)
        request = control.ScoreAsked(run.run, session.service, number, b"".join(names))
        for name, answer in self._all(run, request, session.without):
            if isinstance(answer, control.NotOpen):
                self._forget((run.run, session.without), session)
                raise Unanswered(name, f"'{name}' has forgotten the scoring session.", broken=True)
            if not isinstance(answer, control.ScoreWords) or len(answer.words) != total.nbytes:
                raise PeerFailed(f"'{name}' answered a question for {len(names)} rows by something else.")
            total += np.frombuffer(answer.words, "<u8")
        own, known = self._kept.scorer(run, f"{session.service}/{number}", self._home.name).scores(names)
        scores, known = scores_from(total, own, known, scale_of(sums_of(run.job).fraction_bits))
        with self._lock:
            self.questions, self.rows = self.questions + 1, self.rows + len(names)
        return self._kept.told(run, scores, known, session.without)

    def _all(self, run: Run, request: Request, without: tuple[str, ...]) -> list[tuple[str, Answer]]:
        """Everybody else's answer to one request; all are heard before the first failure is raised."""
        others = [name for name in run.job.parties if name != self._home.name and name not in without]
        asked = [(name, self._pool.submit(patiently, partial(self._call, name, request))) for name in others]
        wait([future for _, future in asked])
        return [(name, _answer_of(name, future)) for name, future in asked]

    def _forget(self, which: Which, session: ScoringSession) -> None:
        with self._lock:
            if self._sessions.get(which) is session:
                del self._sessions[which]

    def _session(self, which: Which, run: Run) -> ScoringSession:
        with self._lock:
            opening = self._opening[which]
        with opening:  # those who ask for the same run wait for one opening; others are not held up
            session = self._sessions.get(which)
            if session is None:
                session = self._sessions[which] = self._opened(run, which[1])
                self._keep_few()
            return session

    def _keep_few(self) -> None:
        """The oldest go: a session that is asked for again is opened anew."""
        with self._lock:
            for which in list(self._sessions)[:-SESSIONS_KEPT]:
                self._sessions.pop(which)
                self._opening.pop(which, None)

    def _opened(self, run: Run, without: tuple[str, ...]) -> ScoringSession:
        service = f"score-{secrets.token_hex(8)}"
        keys: dict[str, tuple[bytes, bytes]] = {}
        for name, offer in self._all(run, control.OpenScoring(run.run, service, list(without)), without):
            if not isinstance(offer, control.ScoringKey):
                raise PeerFailed(f"'{name}' answered by something else than a key for scoring.")
            keys[name] = (offer.public, offer.signature)
        self._all(run, control.ScoringKeys(run.run, service, keys), without)
        log.info("run %s: a scoring session with %s is open", run.run, " and ".join(keys))
        return ScoringSession(service, without)


def _answer_of(name: str, future: "Future[Answer]") -> Answer:
    try:
        return future.result()
    except PeerFailed as problem:
        raise Unanswered(name, str(problem), isinstance(problem, LineBroken)) from problem


def patiently(ask: Callable[[], T]) -> T:
    """A run ends at one party a little before it ends at another: who asks early asks again, for a while."""
    until_s = time.monotonic() + ENDS_WITHIN_S
    while True:
        try:
            return ask()
        except NotYet:
            if time.monotonic() > until_s:
                raise
        time.sleep(ASK_AGAIN_S)
