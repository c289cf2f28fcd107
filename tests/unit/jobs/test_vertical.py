"""Job files: read, checked, changed from the command line, written back, and documented key by key."""

import re
import tomllib
from math import inf
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from offbeat.data.preparation import Preparation
from offbeat.errors import BadJob
from offbeat.families.vertical_data import load_data, preparation_of
from offbeat.jobs.embedding import EmbeddingEntry
from offbeat.jobs.horizontal import ConstantsEntry, EdgeDataEntry, EdgeJob, ModelEntry, PrivacyEntry, RateEntry
from offbeat.jobs.private_products import ProductsEntry
from offbeat.jobs.reading import job_from, job_text, plain_of, read_job
from offbeat.jobs.runtime import Faults, RuntimeEntry, resolved
from offbeat.jobs.source import SourceEntry
from offbeat.jobs.vertical import DataEntry, Job, PartyEntry
from offbeat.runtime.simulator import PROFILES
from offbeat.settings import apply_setting

SMALLEST = """
algorithm = "afsvrg-vp"
seed = 7
penalty = 1e-4
target = 1e-6
passes = 60
secure_sum = "pairwise"

[[party]]
name = "bank"
file = "bank.csv"
id = "customer"
label = "default"

[[party]]
name = "shop"
file = "shop.csv"
id = "customer"

[[party]]
name = "telecom"
file = "telecom.csv"
id = "customer"

[runtime]
kind = "simulator"
slow = { shop = 4.0 }
"""


def written(tmp_path, text=SMALLEST):
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def test_the_smallest_job_of_the_reference_is_read(tmp_path):
    job = read_job(written(tmp_path))
    assert (job.algorithm, job.seed, job.penalty, job.target, job.passes) == ("afsvrg-vp", 7, 1e-4, 1e-6, 60.0)
    assert [entry.name for entry in job.party] == ["bank", "shop", "telecom"]
    assert job.party[0].file == str(tmp_path / "bank.csv")
    assert job.party[0].label == "default" and job.party[1].label is None
    assert job.runtime.slow == {"shop": 4.0}


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("penality = 1e-4", "penalty"),
        ("[runtime]\nkindd = 'threads'", "kind"),
        ("[data]\nsplitt = 'equal'", "split"),
        ("[[party]]\nname = 'a'\nfil = 'a.csv'", "file"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_name(tmp_path, line, near):
    with pytest.raises(BadJob, match=f"unknown key.*'{near}'"):
        read_job(written(tmp_path, line))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("passes = 0", "passes must be a finite number above 0; got 0"),
        ("penalty = -1.0", "penalty must be a finite number of 0 or more, or a list"),
        ("seed = 'seven'", "seed must be a whole number of 0 or more; got 'seven'"),
        ("step = 'automatic'", 'step must be a finite number above 0 or one of "auto", "grid"; got'),
        ("step = -0.5", "step must be a finite number above 0"),
        ("batch = 0", "batch must be a whole number of 1 or more"),
        ("loss = 'logistics'", "Did you mean 'logistic'"),
        ("secure_sum = 'pairwize'", "Did you mean 'pairwise'"),
        ("[runtime]\nkind = 'simulation'", "runtime.kind must be one of"),
        ("[runtime]\nslow = { shop = 0.5 }", "a number between 1 and 1000 for each name; got {'shop': 0.5}"),
        ("step = 'grid'\n[runtime]\nkind = 'threads'", "only the simulator"),
        ("x = ", "not valid TOML"),
        ("[[party]]\nname = 'a'\nfile = 'x'\n[[party]]\nname = 'a'\nfile = 'y'", "same name"),
        ("labels_at = ['banc']\n[[party]]\nname = 'bank'\nfile = 'x'", "Did you mean 'bank'"),
        ("[[party]]\nname = '../evil'\nfile = 'x'", "cannot be a party's name"),
        ("penalty = inf", "penalty must be a finite number"),
        ("step = inf", "step must be a finite number"),
        ("lag = 2.0", "lag is no longer known. Steps follow from the lag that is measured"),
        ("seconds = -1.0", "seconds must be"),
        ("survey_passes = -1.0", "survey_passes must be"),
        ("by_curvature = 'yes'", "by_curvature must be"),
        ("snapshot_passes = 2.0", "Write survey_passes"),
        ("certify_passes = 10.0", "write survey_passes"),
        ("target = nan", "target must be a finite number"),
        ("label_dp_epsilon = inf", "label_dp_epsilon must be a number between"),
        ("label_dp_epsilon = 1000.0", "label_dp_epsilon must be a number between"),
        ("in_flight = 1000000", "in_flight must be a whole number between 1 and 1024"),
        (f"seed = 1{'0' * 400}", "seed must be a whole number"),
        ("patience_s = 1e-9", "patience_s is no longer known"),
        ("looks_per_pass = 1e9", "looks_per_pass must be a number between"),
        ("fraction_bits = 1", "fraction_bits must be a whole number between 16 and 60"),
        ("fraction_bits = 63", "fraction_bits must be a whole number between 16 and 60"),
        ("[runtime]\nslow = { shop = 1e6 }", "between 1 and 1000"),
        ("[runtime]\nslow = { shop = inf }", "got {'shop': inf}"),
        ("[runtime]\nlatency_s = inf", "runtime.latency_s must be a number between 0 and 3600; got inf"),
        ("[runtime]\nbandwidth_mbit_s = 1e-9", "runtime.bandwidth_mbit_s must be a number of 1e-06 or more"),
        ("[runtime]\noverhead_s = inf", "runtime.overhead_s must be a number between 0 and 3600"),
        ("[runtime]\nfaults_until_s = inf", "runtime.faults_until_s must be a finite number"),
        ("[runtime]\njitter_cv = inf", "runtime.jitter_cv must be a number between 0 and 10"),
        ("[runtime]\njitter_cv = nan", "runtime.jitter_cv must be a number between 0 and 10"),
        ("[runtime]\njitter_cv = -1", "runtime.jitter_cv must be a number between 0 and 10"),
        (
            "[data]\nset = 'credit-like'\nparties = 0",
            "data.parties must be a whole number between 2 and 1000",
        ),
        (
            "[data]\nset = 'credit-like'\nparties = -3",
            "data.parties must be a whole number between 2 and 1000",
        ),
        (
            "[data]\nset = 'credit-like'\nparties = []",
            "data.parties must be a whole number between 2 and 1000",
        ),
        ("[data]\nset = 'credit-like'\nlimit_rows = -5", "data.limit_rows must be a whole number of 1 or more"),
        ("[data]\nlimit_rows = 10\n[[party]]\nname = 'a'\nfile = 'x'", "data.limit_rows is for a named set"),
        ("[data]\nparties = 7\n[[party]]\nname = 'a'\nfile = 'x'", "data.parties is for a named set"),
        ("[data]\nsplit = 'mod'\n[[party]]\nname = 'a'\nfile = 'x'", "data.split is for a named set"),
        ("[data]\npreparation = 'z'\n[[party]]\nname = 'a'\nfile = 'x'", "data.preparation is for a named set"),
        ("[data]\nset = 'credit-like'\n[[party]]\nname = 'a'\nfile = 'x'", "choose one"),
        ("[[party]]\nname = 'a'", "party 'a': expected `file`"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(tmp_path, line, words):
    with pytest.raises(BadJob, match=re.escape(words)):
        read_job(written(tmp_path, line))


def test_numbers_that_may_be_infinite_or_large_are_accepted():
    unlimited = job_from({"runtime": {"until_s": inf, "bandwidth_mbit_s": inf}})
    assert unlimited.runtime.until_s == inf
    job_from({"patience_s": 1.0, "snapshot_passes": 1.0, "runtime": {"latency_s": 10.0}})  # as old run folders have it
    job_from({"runtime": {"latency_s": 10.0, "kind": "processes"}})  # which has a real network instead
    job_from({"algorithm": "vafl", "embedding": {"delay_bound": inf}, "runtime": {"latency_s": 10.0}})


def test_a_missing_job_file_is_named(tmp_path):
    with pytest.raises(BadJob, match="no job file"):
        read_job(tmp_path / "absent.toml")


def test_settings_replace_keys_at_any_depth(tmp_path):
    settings = [
        "seed=3",
        "algorithm=afsaga-vp",
        "runtime.slow.bank=2",
        "party.shop.file=other.csv",
        "labels_at=['bank']",
    ]
    job = read_job(written(tmp_path), settings)
    assert (job.seed, job.algorithm, job.labels_at) == (3, "afsaga-vp", ["bank"])
    assert job.runtime.slow == {"shop": 4.0, "bank": 2.0}
    assert job.party[1].file == str(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("seed", "key=value"),
        ("party.shopp.file=x", "'shop'"),
        ("seed.x=1", "value"),
        ("party.bank=3", "party.bank.file"),
    ],
)
def test_a_setting_that_fits_nowhere_is_refused(setting, words):
    with pytest.raises(BadJob, match=words):
        apply_setting(tomllib.loads(SMALLEST), setting)


def test_a_job_written_back_is_the_same_job(tmp_path):
    job = read_job(written(tmp_path))
    assert job_from(tomllib.loads(job_text(job))) == job
    set_job = resolved(
        Job(data=DataEntry(set='a "quoted" name', split={"a": ["x"], "b": ["y"]}), runtime=RuntimeEntry(until_s=inf))
    )
    assert job_from(tomllib.loads(job_text(set_job))) == set_job


def test_a_job_is_resolved_when_it_is_read_and_only_then():
    assert job_from({}).runtime.latency_s == 1e-4
    assert job_from({"runtime": {"kind": "threads"}}).runtime.latency_s == 0.0
    assert job_from({"algorithm": "mapa"}).runtime.latency_s == 1e-4
    given = job_from({"runtime": {"latency_s": 0.5}})
    assert given.runtime.latency_s == 0.5 and resolved(given) is given


def test_what_says_nothing_to_a_job_is_not_written():
    assert "embedding" not in plain_of(Job()) and "party" not in plain_of(Job())
    assert plain_of(Job(algorithm="vafl"))["embedding"]["width"] == 16


def test_the_faults_of_a_job_are_those_of_the_simulator():
    assert get_args(Faults) == PROFILES


DOCUMENTED = {
    "the top": Job,
    "[data]": DataEntry,
    "[products]": ProductsEntry,
    "[embedding]": EmbeddingEntry,
    "[runtime]": RuntimeEntry,
    "[[party]]": PartyEntry,
}
EDGES_DOCUMENTED = {
    "the top": EdgeJob,
    "[model]": ModelEntry,
    "[rate]": RateEntry,
    "[constants]": ConstantsEntry,
    "[privacy]": PrivacyEntry,
    "[data]": EdgeDataEntry,
    "[[site]]": SourceEntry,
}
PAGES = [("job-file.md", DOCUMENTED, name) for name in DOCUMENTED]
PAGES += [("edge-job-file.md", EDGES_DOCUMENTED, name) for name in EDGES_DOCUMENTED]


@pytest.mark.parametrize(("page", "kinds", "section"), PAGES)
def test_the_reference_page_has_every_key_and_no_other(page, kinds, section):
    text = (Path(__file__).parents[3] / "docs" / "reference" / page).read_text(encoding="utf-8")
    heading = "## At the top" if section == "the top" else f"## `{section}`"
    part = text.split(heading + "\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE))
    assert documented == {field.name for field in msgspec.structs.fields(kinds[section]) if not _is_table(field)}
    for name, default in _defaults(kinds[section]):
        row = next(line for line in part.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"`{default}`" in row, f"{name}: the page should show the default {default}"


def _is_table(field):
    return field.name in ("party", "site") or isinstance(field.default, msgspec.Struct)


def _defaults(kind):
    for field in msgspec.structs.fields(kind):
        value = field.default
        if _is_table(field) or value is None or value is msgspec.NODEFAULT:
            continue
        yield field.name, {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else _shown(value)


def _shown(value):
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


# -- how columns are prepared ----------------------------------------------------------------------------------------

PARTIES = "[[party]]\nname = 'bank'\nfile = 'a.csv'\n{}\n[[party]]\nname = 'shop'\nfile = 'b.csv'\n"


def test_prepare_is_a_word_or_a_table_and_comes_back_from_the_run_folder(tmp_path):
    table = 'prepare = { how = "bins", bins = 10, columns = { town = "category" } }'
    job = read_job(written(tmp_path, "[data]\nprepare = 'scaled'\n" + PARTIES.format(table)))
    expected = Preparation(how="bins", bins=10, columns={"town": "category"})
    assert job.data.prepare == "scaled" and job.party[0].prepare == expected and job.party[1].prepare is None
    assert preparation_of(job.party[0], job) == expected
    assert preparation_of(job.party[1], job) == Preparation(how="scaled")
    again = read_job(written(tmp_path, job_text(job)))
    assert again.party == job.party and again.data == job.data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("test_fraction = 0.3", r"'test_fraction' at the top level\. The key 'test_fraction' belongs under \[data\]"),
        ("[data]\nlabel = 'y'", r"'label' under \[data\]\. The key 'label' belongs under \[\[party\]\]"),
        ("[data]\npasses = 3", "The key 'passes' belongs at the top level: before the first"),
        ("method = 'vfb2-saga'", "Did you mean 'algorithm'"),
        ("test_size = 0.3", r"The key 'test_fraction' belongs under \[data\]"),
        ("epochs = 3", "Did you mean 'passes'"),
        ("[[parties]]\nname = 'bank'", "'parties' at the top level. Did you mean 'party'"),
        (
            "algorithm = 'steady'\n[[party]]\nname = 'bank'",
            r"steady is for .* rows, .*choose algorithm = \"vfb2-saga\"",
        ),
        ("algorithm = 'vfb2-saga'\n[[site]]\nname = 'a'", r"vfb2-saga is for .* columns, .*algorithm = \"steady\""),
    ],
)
def test_a_key_of_another_table_or_program_is_told_where_it_belongs(tmp_path, text, said):
    with pytest.raises(BadJob, match=said):
        read_job(written(tmp_path, text))


def test_columns_that_are_named_for_all_parties_are_those_of_whoever_has_them(tmp_path):
    (tmp_path / "a.csv").write_text("id,age,y\n" + "".join(f"{k},{k % 7}.5,{k % 2}\n" for k in range(40)))
    (tmp_path / "b.csv").write_text("id,calls\n" + "".join(f"{k},{k % 5}.5\n" for k in range(40)))
    parties = PARTIES.format("id = 'id'\nlabel = 'y'") + "id = 'id'\n"
    named = "[data]\nprepare = {{ how = 'bins', bins = 3, columns = {{ age = 'rising', {} = 'scaled' }} }}\n" + parties
    data = load_data(read_job(written(tmp_path, named.format("calls"))))
    assert {name: len(columns) for name, columns in data.columns.items()} == {"bank": 3, "shop": 1}
    with pytest.raises(BadJob, match=r"names column 'cals', which no party has\. Did you mean 'calls'"):
        load_data(read_job(written(tmp_path, named.format("cals"))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[data]\nmissing = 'median'\n" + PARTIES.format(""), 'write prepare = "auto" under'),
        ("[data]\nstandardise = 'none'\n" + PARTIES.format(""), 'write prepare = "none" under'),
        (
            PARTIES.format("one_hot = ['town']"),
            r'for bank: prepare = \{ how = "scaled", columns = \{ "town" = "category"',
        ),
        ("[data]\nset = 'credit-like'\nstandardise = 'all'", "`standardise`, `missing` and `one_hot` are gone"),
        ("[data]\nprepare = 'binned'", 'one of "auto", "bins", "none", "scaled" or a table'),
        ("[data]\nprepare = { how = 'bins', bin = 3 }", "unknown key 'bin' under .data.prepare.*'bins'"),
        (PARTIES.format("prepare = { columns = { a = 'log' } }"), "columns must be a table with one of"),
    ],
)
def test_what_prepare_cannot_say_and_what_was_said_before_it_is_refused(tmp_path, text, said):
    with pytest.raises(BadJob, match=said) as refused:
        read_job(written(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_a_run_folder_over_a_named_set_still_opens(tmp_path):
    text = "[data]\nset = 'credit-like'\nstandardise = 'auto'\nmissing = 'refuse'"
    assert read_job(written(tmp_path, text)).data == DataEntry(set="credit-like")
