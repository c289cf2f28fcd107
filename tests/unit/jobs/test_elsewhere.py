"""A job that names `module:object`: what is found, what is refused, and when nothing is imported at all."""

import sys

import pytest

from offbeat.errors import BadJob
from offbeat.jobs import elsewhere
from offbeat.jobs.elsewhere import is_elsewhere
from offbeat.jobs.methods import METHODS, family_named, horizontal_named, linear_named, method_named
from offbeat.jobs.organisations import check_method, job_from_text
from offbeat.jobs.reading import family_name, job_from, job_text, plain_of

OURS = """
from offbeat.algorithms.methods import LINEAR
from offbeat.jobs.methods import METHODS
COLUMNS, ROWS, EVERYWHERE = LINEAR["vfb2-svrg"], METHODS["fedbuff"], LINEAR["afsgd-vp"]
NUMBER = 3
"""
BY_ROWS = {"algorithm": "nowhere:METHOD", "data": {"set": "digits-like", "edges": 3}}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's in the working folder, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_methods.py").write_text(OURS)
    yield "own_methods"
    for name in ("own_methods", "broken_methods"):
        sys.modules.pop(name, None)


@pytest.fixture
def imports(monkeypatch):
    """The names of modules that would be imported."""
    named = []
    monkeypatch.setattr(elsewhere, "import_module", named.append)
    return named


def test_the_object_of_a_module_in_the_working_folder_is_the_method(module):
    assert linear_named("own_methods:COLUMNS") is METHODS["vfb2-svrg"]
    assert horizontal_named("own_methods:ROWS") is METHODS["fedbuff"]
    with pytest.raises(BadJob, match=r"'own_methods:ROWS' shares out rows, not columns \(its jobs say `edges`"):
        linear_named("own_methods:ROWS")
    with pytest.raises(BadJob, match="'own_methods:COLUMNS' is no horizontal method"):
        horizontal_named("own_methods:COLUMNS")


def test_what_is_not_there_or_of_another_kind_is_told_in_one_paragraph(module, tmp_path):
    with pytest.raises(BadJob, match=rf"no module 'nowhere_at_all', neither in the working folder {tmp_path}"):
        method_named("nowhere_at_all:METHOD")
    with pytest.raises(BadJob, match=r"the module 'own_methods' has no 'OTHER'\. Check the name after the colon"):
        method_named("own_methods:OTHER")
    with pytest.raises(BadJob, match="expected a LinearMethod or a HorizontalMethod, found int"):
        method_named("own_methods:NUMBER")
    with pytest.raises(BadJob, match=r"found (type|function|builtin_function_or_method)"):
        method_named("os:system")
    (tmp_path / "broken_methods.py").write_text("x = 1\ny = 1 / 0\n")
    with pytest.raises(BadJob, match=r"failed at .*broken_methods\.py, line 2: ZeroDivisionError"):
        method_named("broken_methods:METHOD")
    (tmp_path / "broken_methods.py").write_text("x = (\n")
    with pytest.raises(BadJob, match=r"failed at .*broken_methods\.py, line 1: SyntaxError"):
        method_named("broken_methods:METHOD")
    (tmp_path / "broken_methods.py").write_text("import not_installed_here\n")
    with pytest.raises(BadJob, match=r"failed at .*line 1: ModuleNotFoundError: No module named 'not_installed_here'"):
        method_named("broken_methods:METHOD")


def test_only_plain_names_are_module_and_object():
    assert all(map(is_elsewhere, ("a:b", "my_method:METHOD", "package.sub.module:Thing_2")))
    wrong = ("a", "a:", ":b", "a:b:c", "a.b:c.d", ".a:b", "a..b:c", "a b:c", "a:b\n", "ä:b", "../a:b", "x" * 200 + ":b")
    assert not any(map(is_elsewhere, wrong))
    with pytest.raises(BadJob, match="Unknown algorithm 'a:b:c'"):
        family_named("a:b:c")


def test_reading_a_job_imports_nothing_and_its_data_tell_the_family(imports):
    columns = job_from({"algorithm": "nowhere:METHOD", "data": {"set": "credit-like"}})
    rows = job_from(BY_ROWS)
    assert (family_name(columns), family_name(rows)) == ("linear", "horizontal")
    for job in (columns, rows):
        assert job_from(plain_of(job)) == job
        assert 'algorithm = "nowhere:METHOD"' in job_text(job)
    assert imports == []
    with pytest.raises(BadJob):
        linear_named(columns.algorithm)
    assert imports == ["nowhere"], "the watch works"


def test_a_job_between_organisations_is_read_before_its_method_is_looked_at(module):
    text = 'name = "j"\nparties = ["bank", "shop", "telecom"]\nlabels_at = ["bank"]\n[method]\n'
    names = ("COLUMNS", "ROWS", "EVERYWHERE")
    jobs = {name: job_from_text(f'{text}algorithm = "own_methods:{name}"\n') for name in names}
    assert not any(job.embeds for job in jobs.values())
    assert "own_methods" not in sys.modules
    check_method(jobs["COLUMNS"], "the job")
    with pytest.raises(BadJob, match="'own_methods:ROWS' shares out rows"):
        check_method(jobs["ROWS"], "the job")
    with pytest.raises(BadJob, match="'own_methods:EVERYWHERE' needs the labels at every party"):
        check_method(jobs["EVERYWHERE"], "the job")
