"""Both sides of a joint prediction at one daemon: asking in the owner's name, and answering a peer."""

import logging
import secrets
import threading
from collections.abc import Callable, Sequence

import numpy as np

from offbeat.errors import OffbeatError, PeerFailed, Refused
from offbeat.learning.scores import probabilities
from offbeat.orgs import predict
from offbeat.orgs.control import Answer, OpenPrediction, Predicted, Request
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_prediction
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.runs import Run
from offbeat.orgs.scoring import TableScores, classes_of
from offbeat.orgs.tokens import tokens_of
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.options import OnLoss, SessionOptions

log = logging.getLogger("offbeat.party")

AT_ONCE = 16
WITHIN_S = 60.0


class Predictions:
    """`call` asks a peer's daemon, or leaves a letter for it."""

    def __init__(self, home: Home, ledger: RowLedger, call: Callable[[str, Request], Answer]) -> None:
        self._home, self._ledger, self._call = home, ledger, call
        self._room = threading.BoundedSemaphore(AT_ONCE)

    def ask(self, run: Run, ids: Sequence[str]) -> Predicted:
        """Score these rows together with the run's other parties."""
        self._refuse_untrained(run)
        if not ids:
            return Predicted([], [], [] if run.job.model.loss == "logistic" else None, classes_of(run), [])
        prediction = f"predict-{secrets.token_hex(8)}"
        self._open_everywhere(run, prediction, len(ids))
        party = self._predictor(run, prediction, self._home.name, tokens_of(ids, run.own.salt))
        finish = self._session(run, prediction, party).finished[self._home.name]
        if finish.verdict == "refused":
            raise Refused(f"{finish.reason}.")
        if finish.verdict != "predicted" or party.result is None:
            raise PeerFailed(f"{finish.reason}.")
        return self._answer(run, party, party.result)

    def answer(self, run: Run, peer: str, request: OpenPrediction) -> None:
        """Take part in a peer's prediction, by policy, in a thread of its own."""
        if peer not in run.job.parties or not request.prediction.startswith("predict-") or "/" in request.prediction:
            raise Refused(f"'{peer}' has no part in run '{request.run}'.")
        self._refuse_untrained(run)
        refuse_prediction(self._home.config.policy, self._home.name, peer, request.rows)
        if not self._room.acquire(blocking=False):
            raise Refused(f"'{self._home.name}' is busy with {AT_ONCE} predictions; ask again later.")
        party = self._predictor(run, request.prediction, peer, ())
        threading.Thread(target=self._take_part, args=(run, request.prediction, party), daemon=True).start()

    def _open_everywhere(self, run: Run, prediction: str, rows: int) -> None:
        for other in run.job.parties:
            if other == self._home.name:
                continue
            try:
                self._call(other, OpenPrediction(run.run, prediction, rows))
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
            self._room.release()

    def _refuse_untrained(self, run: Run) -> None:
        if run.status.phase != "done" and not (run.status.ended and run.status.kept):
            raise Refused(
                f"run '{run.run}' is '{run.status.phase}' at '{self._home.name}', and only the model of a run that "
                "ended well, or was stopped after a certificate, predicts. Submit the job again."
            )

    def _predictor(self, run: Run, prediction: str, asker: str, tokens: Sequence[bytes]) -> predict.Predictor:
        scorer = TableScores(self._home, run, self._ledger, what=f"{run.run}/{prediction}", asker=asker)
        return run.own.predictor(prediction, asker, scorer, tokens, without=self._home.config.policy.predict_without)

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

    def _answer(self, run: Run, party: predict.Predictor, scores: np.ndarray) -> Predicted:
        """A row that not everybody knows has no score, rather than a wrong one."""
        loss = run.job.model.loss
        chances = probabilities(np.where(party.known, scores, 0.0), loss).tolist() if loss == "logistic" else None
        shown = np.where(party.known, scores, np.nan).tolist()
        return Predicted(shown, party.known.tolist(), chances, classes_of(run), list(party.left_out))
