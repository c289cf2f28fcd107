"""Both sides of standing scoring sessions at one daemon (`standing.py`): answering peers, and asking for the owner.

A session lives in memory: whoever was restarted says that it knows none, and the asker opens another. Rows are counted
in every ledger before their words or scores leave, and every question is held to the policy of its moment.
"""

import itertools
import logging
import os
import secrets
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from offbeat.errors import OutOfRange, PeerFailed, Refused
from offbeat.orgs import control
from offbeat.orgs.control import Answer, Predicted, Request
from offbeat.orgs.lines import LineBroken
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_prediction
from offbeat.orgs.predict import scores_from, words_in_all
from offbeat.orgs.predicting import Predictions, patiently
from offbeat.orgs.runs import Run
from offbeat.orgs.standing import Lane, Terms
from offbeat.orgs.tokens import TOKEN_BYTES, tokens_of
from offbeat.orgs.train import sums_of
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import scale_of
from offbeat.runtime.grpc.identity import Identity, PinnedRoster

log = logging.getLogger("offbeat.party")

LANES_OF_ONE = 8  # sessions that one asker may have; its oldest goes first
SESSIONS_KEPT = 64  # of our own, for as many runs
CALLS_OPEN_MOST = 32
Call = Callable[[str, Request], Answer]


class Answering:
    """The sessions of peers that ask this party."""

    def __init__(self, home: Home, identity: Identity, roster: PinnedRoster, predictions: Predictions) -> None:
        self._home, self._identity, self._predictions = home, identity, predictions
        self.roster = roster
        self._lanes: OrderedDict[tuple[str, str], Lane] = OrderedDict()
        self._lock = threading.Lock()
        self.rows: Counter[str] = Counter()  # asked, by asker

    def open(self, run: Run, peer: str, request: control.OpenScoring) -> Answer:
        self._refuse(run, peer, 1)
        told = self._predictions.model(run).told
        terms = Terms(run.run, request.service, peer, run.job.parties, self._sums(run), told)
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
        with self._lock:
            lane.claim(request.number)
            self.rows[peer] += rows
        tokens = split_tokens(request.tokens)
        scorer = self._predictions.scorer(run, f"{request.service}/{request.number}", peer)
        values, known = scorer.scores(tokens)
        try:
            words = lane.words(request.number, request.tokens, values, known)
        except OutOfRange as problem:
            raise Refused(f"'{self._home.name}' cannot answer: {problem}") from problem
        return control.ScoreWords(words.astype("<u8").tobytes())

    def _refuse(self, run: Run, peer: str, rows: int) -> None:
        self._predictions.refuse_untrained(run)
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
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)


class Asking:
    """This owner's own sessions, one for each run. `call` asks a peer over a connection that stays open."""

    def __init__(self, home: Home, predictions: Predictions, call: Call) -> None:
        self._home, self._predictions, self._call = home, predictions, call
        self._sessions: dict[str, ScoringSession] = {}
        self._opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by run
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CALLS_OPEN_MOST, "scoring")
        self.questions = self.rows = self.retries = 0

    def ask(self, run: Run, ids: Sequence[str]) -> Predicted:
        """Score these rows by one question to every party."""
        self._predictions.refuse_untrained(run)
        if not ids:
            raise Refused("expected at least one id to score.")
        names = tokens_of(ids, run.own.salt)
        try:
            return self._one_question(run, self._session(run), names)
        except LineBroken as problem:  # or it was restarted: another question, under masks of its own
            log.info("run %s: a scoring question is asked again: %s", run.run, problem)
            with self._lock:
                self.retries += 1
        return self._one_question(run, self._session(run), names)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _one_question(self, run: Run, session: ScoringSession, names: list[bytes]) -> Predicted:
        number = next(session.numbers)
        total = np.zeros(words_in_all(len(names), run.job.loss.outputs), np.uint64)
        request = control.ScoreAsked(run.run, session.service, number, b"".join(names))
        for name, answer in self._all(run, request):
            if isinstance(answer, control.NotOpen):
                self._forget(run, session)
                raise LineBroken(f"'{name}' has forgotten the scoring session.")
            if not isinstance(answer, control.ScoreWords) or len(answer.words) != total.nbytes:
                raise PeerFailed(f"'{name}' answered a question for {len(names)} rows by something else.")
            total += np.frombuffer(answer.words, "<u8")
        own, known = self._predictions.scorer(run, f"{session.service}/{number}", self._home.name).scores(names)
        scores, known = scores_from(total, own, known, scale_of(sums_of(run.job).fraction_bits))
        with self._lock:
            self.questions, self.rows = self.questions + 1, self.rows + len(names)
        return self._predictions.told(run, scores, known)

    def _all(self, run: Run, request: Request) -> list[tuple[str, Answer]]:
        """Everybody else's answer to one request; all are heard before the first failure is raised."""
        others = [name for name in run.job.parties if name != self._home.name]
        asked = [(name, self._pool.submit(patiently, partial(self._call, name, request))) for name in others]
        wait([future for _, future in asked])
        return [(name, future.result()) for name, future in asked]

    def _forget(self, run: Run, session: ScoringSession) -> None:
        with self._lock:
            if self._sessions.get(run.run) is session:
                del self._sessions[run.run]

    def _session(self, run: Run) -> ScoringSession:
        with self._lock:
            opening = self._opening[run.run]
        with opening:  # those who ask for the same run wait for one opening; others are not held up
            session = self._sessions.get(run.run)
            if session is None:
                session = self._sessions[run.run] = self._opened(run)
                self._keep_few()
            return session

    def _keep_few(self) -> None:
        """The oldest go: a session that is asked for again is opened anew."""
        with self._lock:
            for run in list(self._sessions)[:-SESSIONS_KEPT]:
                self._sessions.pop(run)
                self._opening.pop(run, None)

    def _opened(self, run: Run) -> ScoringSession:
        service = f"score-{secrets.token_hex(8)}"
        keys: dict[str, tuple[bytes, bytes]] = {}
        for name, offer in self._all(run, control.OpenScoring(run.run, service)):
            if not isinstance(offer, control.ScoringKey):
                raise PeerFailed(f"'{name}' answered by something else than a key for scoring.")
            keys[name] = (offer.public, offer.signature)
        self._all(run, control.ScoringKeys(run.run, service, keys))
        log.info("run %s: a scoring session with %s is open", run.run, " and ".join(keys))
        return ScoringSession(service)


def split_tokens(tokens: bytes) -> list[bytes]:
    return [tokens[i : i + TOKEN_BYTES] for i in range(0, len(tokens), TOKEN_BYTES)]
