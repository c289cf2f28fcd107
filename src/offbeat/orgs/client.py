"""A finished run as a model in Python: `connect` to the own daemon, and predict by ids.

    model = connect("hospital", "diagnosis-20261115-094935-8f147c")
    model.predict_proba(["P100000", "P100003"])

The scores come from all parties together, through the daemon of the folder named first; see orgs/predict.py.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.orgs.control import Predict, Predicted, Request
from offbeat.orgs.lines import OwnDaemon
from offbeat.orgs.party_config import read_home

PREDICT_WITHIN_S = 120.0
ROWS_IN_ONE_QUESTION = 50_000
NAMED_MOST = 5


@dataclass(frozen=True, slots=True)
class JointModel:
    """A model whose parts stay where they are. A row that not every party knows scores NaN, with a warning; if no row
    is known to all, that is an error."""

    home: Path
    run: str
    address: str = ""

    def decision_function(self, ids: Sequence[Any]) -> NDArray[np.float64]:
        """One score a row, of several classes one for each; where numbers are predicted, these."""
        return np.array(self._ask(ids).scores, dtype=np.float64)

    def predict_proba(self, ids: Sequence[Any]) -> NDArray[np.float64]:
        """A column for each class, as scikit-learn has them: of two, the negative and the positive one."""
        answer = self._ask(ids)
        if answer.probabilities is None:
            raise BadJob("probabilities need the logistic loss or softmax; use decision_function.")
        chances = np.array(answer.probabilities, dtype=np.float64)
        chances[~np.array(answer.known, dtype=np.bool_)] = np.nan
        return chances if chances.ndim == 2 else np.column_stack([1 - chances, chances])

    def predict(self, ids: Sequence[Any]) -> list[Any]:
        """The number of each row, or its class, under its own name where this party holds the labels (elsewhere its
        place among several classes); None where it is unknown."""
        answer = self._ask(ids)
        told = zip(answer.scores, answer.known, strict=True)
        return [_answer(answer, score) if known else None for score, known in told]

    def _ask(self, ids: Sequence[Any]) -> Predicted:
        wanted = id_texts(ids)
        answer = predict_in_parts(
            lambda some: ask(self.home, Predict(self.run, some), self.address, PREDICT_WITHIN_S), wanted
        )
        unknown = [text for text, known in zip(wanted, answer.known, strict=True) if not known]
        if unknown:
            told = f"{len(unknown)} of {len(wanted)} ids are not known to every party: {_some(unknown)}"
            if len(unknown) == len(wanted):
                raise BadData(f"{told}. Expected ids as they stand in the parties' id columns.")
            warnings.warn(f"{told}. They have no score (NaN, or None for a class).", stacklevel=3)
        return answer


def predict_in_parts(ask_for: Callable[[list[str]], Any], ids: list[str]) -> Predicted:
    """Questions of a size that any message can carry, one after the other; the answers together."""
    starts = range(0, max(len(ids), 1), ROWS_IN_ONE_QUESTION)
    answers: list[Predicted] = [ask_for(ids[at : at + ROWS_IN_ONE_QUESTION]) for at in starts]
    first = answers[0]
    chances = None if first.probabilities is None else [p for answer in answers for p in answer.probabilities or []]
    return Predicted(
        [score for answer in answers for score in answer.scores],
        [known for answer in answers for known in answer.known],
        chances,
        first.classes,
        sorted({name for answer in answers for name in answer.without}),
        first.numbers,
    )


def id_texts(ids: Sequence[Any]) -> list[str]:
    """The ids as the parties spell them; refuses what cannot be a list of ids."""
    expected = 'expected a list of ids, such as ["P100000", "P100003"]'
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise BadInput(f"{expected}; got {ids!r}, a {type(ids).__name__}. Put a single id into a list.")
    for place, value in enumerate(ids):
        whole = isinstance(value, float | np.floating) and float(value).is_integer()
        if not (whole or isinstance(value, str | bytes | int | np.integer)) or isinstance(value, bool):
            raise BadInput(f"{expected}; got {value!r}, a {type(value).__name__}, at place {place}.")
    return [id_text(value) for value in ids]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMED_MOST])
    return shown if len(names) <= NAMED_MOST else f"{shown} and {len(names) - NAMED_MOST} more"


def connect(home: str | Path, run: str, address: str = "") -> JointModel:
    """The model of a finished run, through the daemon of the party in this folder."""
    return JointModel(Path(home), run, address)


def ask(home_path: Path, request: Request, address: str = "", timeout_s: float = 60.0) -> Any:
    """An owner's request to its own daemon, under its own certificate."""
    with closing(OwnDaemon(read_home(home_path), address)) as daemon:
        return daemon.ask(request, timeout_s)


def _answer(answer: Predicted, score: Any) -> Any:
    if answer.numbers:
        return score
    if isinstance(score, list):
        place = int(np.argmax(score))
        return answer.classes[place] if answer.classes else place
    return (answer.classes or [-1, 1])[int(score >= 0)]
