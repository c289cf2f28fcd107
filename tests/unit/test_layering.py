"""Imports go one way: a package knows only those before it in ORDER, and importing offbeat stays light."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "offbeat"

ORDER = (
    "errors",  # what can go wrong
    "names",  # of parties, and the nearest right one
    "settings",  # TOML files, typed
    "randomness",  # named streams from one seed
    "data",  # where rows, columns and labels come from
    "learning",  # mathematics of one party; knows nothing of messages
    "privacy",  # what may leave a party, and what it costs
    "party",  # the contract and reusable pieces of party
    "message",  # bodies to bytes and back
    "algorithms",  # one file or package per paper, both sides in it
    "runtime",  # interchangeable drivers of parties
    "metrics",  # observations to numbers
    "report",  # numbers to something a person reads
    "testing",  # conformance kit
    "jobs",  # what a job file may say
    "families",  # what differs between kinds of learning
    "run",  # one run in one place, from its job to its folder
    "orgs",  # the same between organisations
    "estimators",  # scikit-learn's manners
    "audit",  # what a finished run gave away
    "lab",  # published results redrawn, benchmarks, the demo
    "cli",  # the command line
)
TOP = len(ORDER)  # the package itself, which hands names out, and its entry point

TOP_LEVEL_MOST = 8
SLOW_IMPORTS = ("torch", "matplotlib", "dp_accounting", "grpc", "paho", "ray", "pandas", "starlette", "uvicorn")


def modules():
    """Every module's dotted name and file."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("offbeat", *path.relative_to(ROOT).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def rank(name):
    parts = name.split(".")
    return ORDER.index(parts[1]) if parts[1:] and parts[1] in ORDER else TOP


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(name, path, nodes):
    """(line, module of ours) for each import among these nodes, relative ones resolved."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "offbeat")
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base.split(".")[0] == "offbeat":
                yield from ((node.lineno, _target(base, alias.name)) for alias in node.names)


def named(nodes):
    """(line, module of ours) for each string that names one, as "offbeat.run.parties:party_of_job" does."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = node.value.partition(":")[0]
            if module != "offbeat" and module in MODULES:
                yield node.lineno, module


def _base(node, package):
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _target(base, name):
    return f"{base}.{name}" if f"{base}.{name}" in MODULES else base


def test_a_module_imports_only_from_packages_before_its_own():
    upward = []
    for name, path in MODULES.items():
        nodes = list(ast.walk(tree_of(path)))
        upward += [
            f"{path.relative_to(ROOT.parents[1])}:{line} imports {target}"
            for line, target in (*imported(name, path, nodes), *named(nodes))
            if rank(target) > rank(name)
        ]
    assert not upward, "\n".join(upward) + f"\nThe order is {' < '.join(ORDER)}."


def test_everything_has_a_rank_and_every_rank_something():
    assert [name for name in ORDER if f"offbeat.{name}" not in MODULES] == []
    assert [name for name in MODULES if rank(name) == TOP] == ["offbeat", "offbeat.__main__"]


def test_few_modules_stand_at_the_top_level():
    assert len(list(ROOT.glob("*.py"))) <= TOP_LEVEL_MOST


def test_no_two_modules_need_each_other_to_be_imported():
    needs = {
        name: {target for _, target in imported(name, path, _at_import(tree_of(path)))}
        for name, path in MODULES.items()
    }
    done, path_so_far = set(), []

    def visit(name):
        assert name not in path_so_far, "a cycle of imports: " + " -> ".join([*path_so_far, name])
        if name in done:
            return
        path_so_far.append(name)
        for target in sorted(needs.get(name, ()) - {name}):
            visit(target)
        path_so_far.pop()
        done.add(name)

    for name in MODULES:
        visit(name)


def _at_import(node):
    """What runs when the module is imported: not what stands in functions, nor what only type checkers read."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.expr):
        for inner in ast.iter_child_nodes(node):
            yield from _at_import(inner)


@pytest.mark.parametrize("entry", ["offbeat", "offbeat.report.page", "offbeat.report.summary", "offbeat.cli"])
def test_importing_does_not_import_what_is_slow(entry):
    script = f"import sys, {entry}; print(*sorted(set(sys.modules) & set({SLOW_IMPORTS!r})))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [], f"importing {entry} brings in {printed.strip()}: import it where it is used"
