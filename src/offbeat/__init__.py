"""Offbeat: federated learning without a common beat.

The public names are imported when they are first used, so that `import offbeat` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.data.assemble import VerticalData as VerticalData
    from offbeat.data.preparation import Preparation as Preparation
    from offbeat.data.vertical import vertical_from_arrays as vertical_from_arrays
    from offbeat.data.vertical import vertical_from_dataset as vertical_from_dataset
    from offbeat.data.vertical import vertical_from_tables as vertical_from_tables
    from offbeat.errors import BadData as BadData
    from offbeat.errors import BadInput as BadInput
    from offbeat.errors import BadJob as BadJob
    from offbeat.errors import BudgetSpent as BudgetSpent
    from offbeat.errors import NotInstalled as NotInstalled
    from offbeat.errors import OffbeatError as OffbeatError
    from offbeat.errors import OutOfRange as OutOfRange
    from offbeat.errors import PeerFailed as PeerFailed
    from offbeat.errors import Refused as Refused
    from offbeat.estimators import DeepVerticalClassifier as DeepVerticalClassifier
    from offbeat.estimators import DeepVerticalRegressor as DeepVerticalRegressor
    from offbeat.estimators import HorizontalClassifier as HorizontalClassifier
    from offbeat.estimators import PartyColumns as PartyColumns
    from offbeat.estimators import VerticalClassifier as VerticalClassifier
    from offbeat.estimators import VerticalClassifierCV as VerticalClassifierCV
    from offbeat.estimators import VerticalRegressor as VerticalRegressor
    from offbeat.estimators import VerticalRegressorCV as VerticalRegressorCV
    from offbeat.families.vertical_data import load_data as load_data
    from offbeat.jobs.reading import read_job as read_job
    from offbeat.jobs.vertical import Job as Job
    from offbeat.metrics.record import RunRecord as RunRecord
    from offbeat.run.experiment import run_experiment as run_experiment
    from offbeat.run.model import TrainedModel as TrainedModel
    from offbeat.run.model import load as load
    from offbeat.run.result import Result as Result
    from offbeat.run.site_model import SiteModel as SiteModel
    from offbeat.run.site_model import load_sites as load_sites
    from offbeat.run.worth import worth as worth
    from offbeat.runtime.simulator import Simulator as Simulator
    from offbeat.runtime.threads import Threads as Threads

PLACES = {
    "data.assemble": ("VerticalData",),
    "data.preparation": ("Preparation",),
    "data.vertical": ("vertical_from_arrays", "vertical_from_dataset", "vertical_from_tables"),
    "errors": (
        "BadData", "BadInput", "BadJob", "BudgetSpent", "NotInstalled", "OffbeatError", "OutOfRange", "PeerFailed",
        "Refused",
    ),
    "estimators": (
        "DeepVerticalClassifier", "DeepVerticalRegressor", "HorizontalClassifier", "PartyColumns", "VerticalClassifier",
        "VerticalClassifierCV", "VerticalRegressor", "VerticalRegressorCV",
    ),
    "families.vertical_data": ("load_data",),
    "jobs.reading": ("read_job",),
    "jobs.vertical": ("Job",),
    "metrics.record": ("RunRecord",),
    "run.experiment": ("run_experiment",),
    "run.model": ("TrainedModel", "load"),
    "run.site_model": ("SiteModel", "load_sites"),
    "run.result": ("Result",),
    "run.worth": ("worth",),
    "runtime.simulator": ("Simulator",),
    "runtime.threads": ("Threads",),
}  # fmt: skip
"""The public names, by the module that has them."""
WHERE = {name: module for module, names in PLACES.items() for name in names}
__all__ = sorted(WHERE)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from offbeat.metrics.machine import offbeat_version

        return offbeat_version()
    if name not in WHERE:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    return getattr(import_module(f"offbeat.{WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
