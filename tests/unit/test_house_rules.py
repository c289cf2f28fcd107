"""Rules of this house that a reader could check by hand, checked by a machine."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "offbeat"
FILES = sorted(SOURCE.rglob("*.py"))

NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc", "tools", "stuff"}
PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FUNCTION_LINES_MOST = 50
FILE_LINES_MOST = 600


@pytest.fixture(scope="module")
def trees():
    """Parsed when the first rule is checked, not while tests are collected, which every worker does for itself."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def shown(path, node=None):
    return f"{path.relative_to(REPOSITORY)}" + (f":{node.lineno}" if node else "")


def test_every_module_has_a_name_that_says_something():
    assert [shown(path) for path in FILES if {path.stem, path.parent.name} & NAMELESS] == []


def test_no_file_is_too_long_to_read():
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES_MOST} == {}


def test_every_module_but_an_empty_one_says_what_it_is_for(trees):
    silent = [path for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert [shown(path) for path in silent] == []


def message_types(trees):
    """Every class that is a Message by its base, or by its base's base, anywhere in the package."""
    classes = [
        (path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    known, found = {"Message"}, []
    while True:
        new = [
            (path, node)
            for path, node in classes
            if node.name not in known and known & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        ]
        if not new:
            return found
        found += new
        known |= {node.name for _, node in new}


def test_every_message_says_what_it_reveals(trees):
    silent = [
        f"{shown(path, node)} {node.name}"
        for path, node in message_types(trees)
        if not re.search(r"^\s*Reveals: \S", ast.get_docstring(node) or "", re.MULTILINE)
    ]
    assert silent == [], "a message's docstring needs a line 'Reveals: what, to whom'"


def imported_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.split(".")[0]


def test_nothing_is_pickled(trees):
    found = [
        shown(path, node) for path, tree in trees.items() for node, name in imported_names(tree) if name in PICKLING
    ]
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                found.append(shown(path, node.value))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
                found.append(shown(path, node))
    assert found == []


def test_global_random_state_is_left_alone(trees):
    legacy = re.compile(
        r"^(np|numpy)\.random\.(seed|rand|randn|randint|random|choice|shuffle|permutation|normal|uniform)$"
    )
    found = [
        shown(path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and legacy.match(ast.unparse(node.func))
    ]
    assert found == []


def test_no_exception_is_swallowed_unnamed(trees):
    bare = [
        shown(path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []


def lines_of(function):
    """Of a function, less its docstring: a table of parameters makes nothing harder to read."""
    text = ast.get_docstring(function, clean=False)
    told = function.body[0].end_lineno - function.body[0].lineno + 1 if text is not None else 0
    return function.end_lineno - function.lineno + 1 - told


def test_functions_fit_on_a_screen(trees):
    functions = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {f"{shown(path, node)} {node.name}": lines_of(node) for path, node in functions}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES_MOST} == {}


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{shown(path)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_make_test_installs_the_extras_that_tests_need():
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.search(r"^EXTRAS := (.*)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert named and set(named[1].split(",")) == extras["optional-dependencies"].keys() - {"all", "docs", "mlflow"}
