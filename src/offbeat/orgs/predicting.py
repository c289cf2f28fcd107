"""Both sides of a joint prediction at one daemon: asking in the owner's name, and answering a peer."""

import logging
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import NotYet, OffbeatError, PeerFailed, Refused
from offbeat.learning.scores import class_probabilities, log_link, probabilities
from offbeat.orgs import predict
from offbeat.orgs.control import Answer, OpenPrediction, Predicted, Request
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_prediction
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnModel, read_model
from offbeat.orgs.runs import Run
from offbeat.orgs.scoring import TableScores
from offbeat.orgs.tables import OwnTables
from offbeat.orgs.tokens import tokens_of
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.options import OnLoss, SessionOptions

log = logging.getLogger("offbeat.party")

AT_ONCE, OF_ONE = 16, 4  # in all, and of one asker
MODELS_KEPT = 8
PREDICTION = re.compile(r"predict-[0-9a-f]{16}")
WITHIN_S = 60.0
ENDS_WITHIN_S, ASK_AGAIN_S = 20.0, 0.2  # how long the others may take to end a run that has ended here
T = TypeVar("T")


class Predictions:
    """`call` asks a peer's daemon, or leaves a letter for it."""

    def __init__(
        self, home: Home, tables: OwnTables, ledger: RowLedger, call: Callable[[str, Request], Answer]
    ) -> None:
        self._home, self._tables, self._ledger, self._call = home, tables, ledger, call
        self._answering: Counter[str] = Counter()  # by asker: predictions that are under way
        self._models: OrderedDict[str, OwnModel] = OrderedDict()
        self._lock = threading.Lock()

    def ask(self, run: Run, ids: Sequence[str]) -> Predicted:
        """Score these rows together with the run's other parties."""
        self.refuse_untrained(run)
        if not ids:
            nothing = np.zeros((0, run.job.loss.outputs))
            return self.told(run, nothing if run.job.loss.outputs > 1 else nothing[:, 0], np.zeros(0, np.bool_))
        prediction = f"predict-{secrets.token_hex(8)}"
        for other in run.job.parties:
            if other != self._home.name:
                patiently(partial(self._open, other, OpenPrediction(run.run, prediction, len(ids))))
        party = self._predictor(run, prediction, self._home.name, tokens_of(ids, run.own.salt), len(ids))
        log.info("%s of run %s: %d rows asked of all parties", prediction, run.run, len(ids))
        finish = self._session(run, prediction, party).finished[self._home.name]
        if finish.verdict == "refused":
            raise Refused(f"{finish.reason}.")
        if finish.verdict != "predicted" or party.result is None:
            raise PeerFailed(f"{finish.reason}.")
        return self.told(run, party.result, party.known, party.left_out)

    def answer(self, run: Run, peer: str, request: OpenPrediction) -> None:
        """Take part in a peer's prediction, by policy, in a thread of its own."""
        if peer not in run.job.parties or not PREDICTION.fullmatch(request.prediction):
            raise Refused(f"'{peer}' has no part in run '{run.run}'.")
        self.refuse_untrained(run)
        refuse_prediction(self._home.config.policy, run.job, self._home.name, peer, request.rows)
        with self._lock:
            if self._answering[peer] >= OF_ONE or self._answering.total() >= AT_ONCE:
                raise Refused(f"'{self._home.name}' is busy with as many predictions as it takes; ask again later.")
            self._answering[peer] += 1
        try:
            party = self._predictor(run, request.prediction, peer, (), request.rows)
            threading.Thread(target=self._take_part, args=(run, request.prediction, party), daemon=True).start()
        except BaseException:
            self._over(peer)
            raise

    def _over(self, peer: str) -> None:
        with self._lock:
            self._answering[peer] -= 1

    def _open(self, other: str, request: OpenPrediction) -> None:
        try:
            self._call(other, request)
        except PeerFailed:
            if not self._home.config.policy.predict_without:
                raise

    def _take_part(self, run: Run, prediction: str, party: predict.Predictor) -> None:
        try:
            outcome = self._session(run, prediction, party)
            log.info("%s of %s: %s", prediction, party.asker, outcome.finished[self._home.name].reason)
        except OffbeatError as problem:
            log.warning("%s of %s: %s", prediction, party.asker, problem)
        except Exception:
            log.exception("%s of %s failed", prediction, party.asker)
        finally:
            self._over(party.asker)

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

    def _predictor(
        self, run: Run, prediction: str, asker: str, tokens: Sequence[bytes], rows: int
    ) -> predict.Predictor:
        scorer, without = self.scorer(run, prediction, asker), self._home.config.policy.predict_without
        told = self.model(run).told
        return run.own.predictor(prediction, asker, scorer, tokens, told=told, rows=rows, without=without)

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

    def _session(self, run: Run, prediction: str, party: predict.Predictor) -> Outcome:
        on_loss: OnLoss = "continue" if self._home.config.policy.predict_without else "stop"
        options = SessionOptions(
            on_loss=on_loss,
            beat_s=0.5,
            silence_s=3.0,
            loss_s=5.0,
            greet_s=5.0,
            wait_s=WITHIN_S,
            grace_s=2.0,
            linger_s=5.0,
        )
        return run.session(prediction, party, predict.MESSAGES, None, run.job.digest, options)

    def told(self, run: Run, scores: Floats, known: NDArray[np.bool_], without: Sequence[str] = ()) -> Predicted:
        """A row that not everybody knows has no score, rather than a wrong one."""
        model, where = run.job.model, known if scores.ndim == 1 else known[:, None]
        sure, chances = np.where(where, scores, 0.0), None
        if model.loss in ("logistic", "softmax"):
            chances = (probabilities(sure, model.loss) if scores.ndim == 1 else class_probabilities(sure)).tolist()
        shown = np.where(where, log_link(sure) if run.job.loss.grows else sure, np.nan).tolist()
        classes, numbers = _listed(self.model(run).classes), model.task == "regression"
        return Predicted(shown, known.tolist(), chances, classes, list(without), numbers)


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


def _listed(classes: tuple[Any, ...] | None) -> list[Any] | None:
    """The names of the classes, at a party that holds the labels."""
    return None if classes is None else list(classes)
