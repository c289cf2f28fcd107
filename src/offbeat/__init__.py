"""Offbeat: federated learning without a common beat.

The public names are imported when they are first used, so that `import offbeat` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.data.assemble import VerticalData
    from offbeat.data.vertical import vertical_from_arrays, vertical_from_dataset, vertical_from_tables
    from offbeat.errors import (
        BadData,
        BadInput,
        BadJob,
        BudgetSpent,
        NotInstalled,
        OffbeatError,
        OutOfRange,
        PeerFailed,
        Refused,
    )
    from offbeat.estimators import PartyColumns, VerticalClassifier, VerticalRegressor
    from offbeat.families.vertical_data import load_data
    from offbeat.jobs.reading import read_job
    from offbeat.jobs.vertical import Job
    from offbeat.metrics.record import RunRecord
    from offbeat.run.experiment import Result, run_experiment
    from offbeat.runtime.simulator import Simulator
    from offbeat.runtime.threads import Threads

WHERE = {
    "BadData": "errors",
    "BadInput": "errors",
    "BadJob": "errors",
    "BudgetSpent": "errors",
    "Job": "jobs.vertical",
    "NotInstalled": "errors",
    "OffbeatError": "errors",
    "OutOfRange": "errors",
    "PartyColumns": "estimators",
    "PeerFailed": "errors",
    "Refused": "errors",
    "Result": "run.experiment",
    "RunRecord": "metrics.record",
    "Simulator": "runtime.simulator",
    "Threads": "runtime.threads",
    "VerticalClassifier": "estimators",
    "VerticalData": "data.assemble",
    "VerticalRegressor": "estimators",
    "load_data": "families.vertical_data",
    "read_job": "jobs.reading",
    "run_experiment": "run.experiment",
    "vertical_from_arrays": "data.vertical",
    "vertical_from_dataset": "data.vertical",
    "vertical_from_tables": "data.vertical",
}
"""Which module has each public name."""

__all__ = [
    "BadData",
    "BadInput",
    "BadJob",
    "BudgetSpent",
    "Job",
    "NotInstalled",
    "OffbeatError",
    "OutOfRange",
    "PartyColumns",
    "PeerFailed",
    "Refused",
    "Result",
    "RunRecord",
    "Simulator",
    "Threads",
    "VerticalClassifier",
    "VerticalData",
    "VerticalRegressor",
    "load_data",
    "read_job",
    "run_experiment",
    "vertical_from_arrays",
    "vertical_from_dataset",
    "vertical_from_tables",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from offbeat.metrics.machine import offbeat_version

        return offbeat_version()
    if name not in WHERE:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    return getattr(import_module(f"offbeat.{WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
