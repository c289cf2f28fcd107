"""Methods that are no part of the package: a job names `module:object`, and the module is imported.

Only who trains imports. Reading a job, a proposal or a run folder does not: a name may come from somebody else.
"""

import os
import re
import sys
import traceback
from importlib import import_module
from typing import Any

from offbeat.errors import BadJob

NAME = re.compile(r"(?=.{3,200}$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_elsewhere(name: object) -> bool:
    """Whether this is `module:object`, and no name of the package."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def import_object(name: str) -> Any:
    """The object of `module:object`; the module may lie in the working folder."""
    module, _, wanted = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except Exception as problem:  # code of the user's may raise anything
        raise BadJob(_not_imported(name, module, here, problem)) from problem
    if not hasattr(found, wanted):
        raise BadJob(f"algorithm = {name!r}: the module {module!r} has no {wanted!r}. Check the name after the colon.")
    return getattr(found, wanted)


def _not_imported(name: str, module: str, here: str, problem: Exception) -> str:
    if isinstance(problem, ModuleNotFoundError) and problem.name in (module, module.partition(".")[0]):
        return (
            f"algorithm = {name!r}: there is no module {module!r}, neither in the working folder {here} nor among the "
            f"installed packages. Start offbeat in the folder of {module.partition('.')[0]}.py, or install its package."
        )
    last = traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{last.filename}, line {last.lineno}"
    if isinstance(problem, SyntaxError):
        where = f"{problem.filename}, line {problem.lineno}"
    return f"algorithm = {name!r}: importing {module!r} failed at {where}: {type(problem).__name__}: {problem}"
