"""Networks over columns, with scikit-learn's manners: VAFL, with a module of PyTorch for each party and a head.

    model = DeepVerticalClassifier(
        modules={"bank": nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8)), "shop": make_mine},
        head=lambda inputs: nn.Linear(inputs, 3),
    ).fit({"bank": Xb, "shop": Xs}, y)
    model.predict_proba({"bank": Xb, "shop": Xs})

A function instead of a module is called with the number of inputs: prepared columns are often more than raw ones. A
party without a module has a small network. PyTorch (the extra `deep`) is imported when `fit` or `load` needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sklearn.base import RegressorMixin

from offbeat.data.assemble import VerticalData
from offbeat.data.labels import Task
from offbeat.errors import BadInput, BadJob
from offbeat.estimators.by_party import ByParty, Classifies, check_usable, kept_estimator
from offbeat.estimators.incoming import Blocks, Floats, check_labels, classes_of, plain
from offbeat.families.contract import Part
from offbeat.families.embedding import EmbeddingTraining
from offbeat.families.networks import networks_of, weights_from
from offbeat.jobs.embedding import OWN
from offbeat.jobs.methods import family_named
from offbeat.jobs.vertical import SERVER, Job, vertical_job_from
from offbeat.names import did_you_mean
from offbeat.run.experiment import run_training
from offbeat.run.model import TrainedModel, load, model_of
from offbeat.run.observer import Watch
from offbeat.run.result import Result

HEADS = ("mlp", "additive")
Own = TypeVar("Own", bound="_Deep")


@dataclass(eq=False, repr=False)
class _Deep(ByParty):
    """What the two estimators share. The constructor only stores; `fit` checks.

    modules             a torch.nn.Module by party, or a function of the number of its prepared columns that makes one;
                        it maps a batch to (rows, any width). None, and parties that are left out: a small network
    head                "mlp"; "additive", which adds the parties' numbers up; or a module, or a function of the number
                        of inputs: all parties' widths one after the other. It gives one number (two classes, numbers)
                        or one for each class
    algorithm           vafl (nobody waits), vafl-tsync, vafl-sync (rounds)
    shapes              of one row, by party, where a module wants more than a vector: {"camera": (1, 28, 28)}
    width               how many numbers a party with a small network sends for each row
    hidden              the layers of small networks before that
    parties             for one matrix or frame: the columns of each party; None: shared out evenly over three parties
    prepare             what is done to the columns: "auto", "bins", "scaled", "none", or one of these by party
    passes              over the rows
    step                of Adam, or "auto": 0.002
    batch               the rows of an upload, or "auto": a hundredth of them, 64 at least
    penalty             of each party's weights, after every step
    early_stopping      end when the score of held-out rows has not improved for so many passes; None: never
    validation_fraction  how many of the rows are held out for that
    warm_start          begin the next `fit` with the weights of the last one
    device              "auto" (a GPU if there is one), "cpu", "cuda", ...
    label_dp_epsilon    answer every label at random once, with this epsilon
    runtime             "simulator" (virtual time) or "threads"
    slow                how many times slower a party is, by its name
    seed                decides first weights, order of rows and batches; None is 0
    verbose             tell of the progress on standard error
    """

    modules: Mapping[str, Any] | None = None
    head: Any = "mlp"
    _: KW_ONLY
    algorithm: str = "vafl"
    shapes: Mapping[str, Sequence[int]] | None = None
    width: int = 16
    hidden: Sequence[int] = (64,)
    parties: Mapping[str, Sequence[str | int]] | int | None = None
    prepare: Any = "auto"
    passes: float = 40
    step: float | str = "auto"
    batch: int | str = "auto"
    penalty: float = 1e-4
    early_stopping: float | None = None
    validation_fraction: float = 0.2
    warm_start: bool = False
    device: str = "auto"
    label_dp_epsilon: float | None = None
    runtime: str = "simulator"
    slow: dict[str, float] | None = None
    seed: int | None = 0
    verbose: bool = False

    def _job(self, task: Task, X: Blocks) -> Job:
        me = type(self).__name__
        if family_named(self.algorithm) != "embedding":
            raise BadJob(f"{me} trains by vafl, vafl-tsync or vafl-sync; got algorithm = {self.algorithm!r}.")
        keys = ("algorithm", "passes", "step", "batch", "penalty", "early_stopping", "label_dp_epsilon", "seed")
        given = {name: plain(getattr(self, name)) for name in keys if getattr(self, name) is not None}
        return vertical_job_from({**given, **self._common(X), "task": task, "embedding": self._embedding(X)}, me)

    def _embedding(self, X: Blocks) -> dict[str, Any]:
        """The job's table: what is one's own is called that, and only its weights are kept."""
        for name, given in (("modules", self.modules), ("shapes", self.shapes)):
            if given is not None and not isinstance(given, Mapping):
                raise BadJob(
                    f"{name} must be a dictionary by party, as in {{'bank': ...}}; got {type(given).__name__}."
                )
            unknown = [party for party in given or () if party not in X]
            if unknown:
                raise BadJob(f"{name} names {unknown[0]!r}, which is no party. {did_you_mean(str(unknown[0]), X)}")
        if isinstance(self.head, str) and self.head not in HEADS:
            raise BadJob(f"head must be a module or one of {', '.join(HEADS)}; got {self.head!r}.")
        kinds = {party: OWN if party in (self.modules or {}) else "mlp" for party in X}
        table: dict[str, Any] = {
            "kind": kinds,
            "optimiser": "adam",
            "device": _device(self.device),
            "head": self.head if isinstance(self.head, str) else OWN,
        }
        without = next((party for party in self.shapes or () if kinds[party] != OWN), None)
        if without is not None:
            raise BadJob(f"shapes says what a module's rows look like, and {without!r} has no module in modules.")
        if self.shapes:
            table["shape"] = {party: list(shape) for party, shape in self.shapes.items()}
        if "mlp" in kinds.values():
            table["hidden"] = list(self.hidden)
        return table if self.head == "additive" else {**table, "width": self.width}

    def _data(self, X: Blocks, y: Any, task: Task, job: Job, beside: Mapping[str, Any]) -> VerticalData:
        """Numbers are learned from their mean on, in units of their spread: networks begin near 0 and step by 0.002."""
        data = super()._data(X, y, task, job, beside)
        if task != "regression":
            return data
        middle, spread = float(data.y_train.mean()), float(data.y_train.std()) or 1.0
        train, test = ((rows - middle) / spread for rows in (data.y_train, data.y_test))
        return replace(data, y_train=train, y_test=test, y_offset=middle, y_scale=spread)

    def _trained(
        self, data: VerticalData, job: Job, watch: Watch | None, start: Mapping[str, Part] | None
    ) -> tuple[TrainedModel, Result]:
        networks = networks_of(job, data, self.modules, self.head)
        result = run_training(EmbeddingTraining(job, data, *networks, start=start), watch=watch)
        check_usable(result)
        return replace(model_of(job, result), networks=networks), result

    def _kept_parameters(self, **instead: Any) -> dict[str, Any]:
        """Modules are code, which is not kept: `load` is given them again."""
        head = self.head if isinstance(self.head, str) else None
        return super()._kept_parameters(modules=None, head=head, **instead)

    @classmethod
    def load(cls: type[Own], folder: str | Path, modules: Mapping[str, Any] | None = None, head: Any = None) -> Own:
        """The fitted model that `save` wrote into `folder`. `modules` and `head` of your own are given again: weights
        alone were kept."""
        kept = kept_estimator(folder, cls.__name__)
        trained, parameters = load(folder), dict(kept["parameters"])
        if parameters["head"] is not None and head is not None:
            raise BadInput(f"{folder} was fitted with head = {parameters['head']!r}; leave `head` out.")
        parameters |= {"modules": modules, "head": parameters["head"] if head is None else head}
        networks = networks_of(trained.job, trained, modules, head)
        weights_from("the head", networks[1], trained.parts[SERVER].arrays)  # says what does not fit
        for name, network in networks[0].items():
            weights_from(name, network, trained.parts[name].arrays)
        return cls._loaded(cls(**parameters), replace(trained, networks=networks), kept, Path(folder))


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    from offbeat.learning.networks import best_device

    return best_device()


class DeepVerticalClassifier(Classifies, _Deep):
    __doc__ = f"""Two classes or more, by networks. After `fit`: classes_, record_, parties_, n_iter_, n_features_in_.
{(_Deep.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any) -> "DeepVerticalClassifier":
        """Train. `X`: the columns of each party, or one matrix or frame of all; `y`: labels, one for each row."""
        y = check_labels(y, type(self).__name__)
        classes, task = classes_of(y, "DeepVerticalRegressor")
        self._fit(X, y, task, classes)
        self.classes_ = classes
        return self


class DeepVerticalRegressor(RegressorMixin, _Deep):  # type: ignore[misc]
    __doc__ = f"""Numbers, by networks and the squared loss. After `fit`: record_, parties_, n_iter_, n_features_in_.
{(_Deep.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any) -> "DeepVerticalRegressor":
        """Train. `X`: the columns of each party, or one matrix or frame of all; `y`: numbers, one for each row."""
        y = check_labels(y, type(self).__name__)
        self._fit(X, y, "regression")
        return self

    def predict(self, X: Any) -> Floats:
        """The number of every row of `X`, which comes in the form that `fit` had."""
        return self._scores(X)
