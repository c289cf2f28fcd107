"""What the pages say exists: commands, options, files, line counts, and the four parts of every decision."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import typer

from offbeat.cli import app
from offbeat.jobs.reading import job_from
from offbeat.lab.catalogue import catalogue

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "docs" / "building"))
import figures  # noqa: E402 (it lies beside the pages)
import keep  # noqa: E402

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("0*.md"))
DECISION_PARTS = ("Context", "Choice", "Rejected", "Consequences")
README_LINES_MOST = 150
PAPERS = REPOSITORY / "docs" / "explanation" / "what-the-papers-say.md"


def text_of(path):
    return path.read_text(encoding="utf-8")


def fences(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(path), re.DOTALL | re.MULTILINE)


# -- commands --------------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"^\s*(?:\$ )?offbeat ([a-z].*)$", re.MULTILINE)
INLINE = re.compile(r"`offbeat ([a-z][^`]*)`")


def commands(path):
    """Every `offbeat ...` line of the page's fences, and every one in its prose."""
    shown = [
        line
        for block in re.findall(r"^```\w*\n(.*?)^```", text_of(path), re.DOTALL | re.MULTILINE)
        for line in COMMAND.findall(block)
    ]
    return [re.sub(r"\s{2,}.*|\s+#.*", "", line).strip() for line in [*shown, *INLINE.findall(text_of(path))]]


def mistakes(line):
    """Words of a command line that the command line does not know."""
    root = typer.main.get_command(app)
    here, words = root, line.split()
    context = typer.Context(root)
    while words and hasattr(here, "get_command") and re.fullmatch(r"[a-z-]+", words[0]):
        found = here.get_command(context, words[0])
        if found is None:
            return [f"no command {words[0]!r}"]
        here, words = found, words[1:]
    known = {name for parameter in here.params for name in (*parameter.opts, *parameter.secondary_opts)}
    used = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [f"no option {option}" for option in used if option not in known | {"--help", "--version"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_shown_exists(page):
    wrong = {line: mistakes(line) for line in commands(page)}
    assert {line: found for line, found in wrong.items() if found} == {}


def test_the_check_itself_notices_what_does_not_exist():
    assert mistakes("run job.toml --set a=b --json") == []
    assert mistakes("party check --home x") == []
    assert mistakes("rnu job.toml") == ["no command 'rnu'"]
    assert mistakes("run job.toml --sett a=b") == ["no option --sett"]
    assert mistakes("job sumbit x") == ["no command 'sumbit'"]


def test_every_make_target_shown_exists():
    targets = set(re.findall(r"^([a-z-]+):", text_of(REPOSITORY / "Makefile"), re.MULTILINE))
    for page in PAGES:
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE))
        shown = re.findall(r"`make ([a-z-]+)", text_of(page)) + re.findall(r"^make ([a-z-]+)", blocks, re.MULTILINE)
        assert set(shown) <= targets, page


def test_the_readme_begins_with_the_two_commands_and_stays_short():
    lines = text_of(REPOSITORY / "README.md").splitlines()
    assert len(lines) <= README_LINES_MOST
    beginning = "\n".join(lines[:15])
    assert "make demo" in beginning and "make test" in beginning


# -- what is shown runs ------------------------------------------------------------------------------------------------


def test_the_python_of_the_readme_runs(capsys):
    (code,) = fences(REPOSITORY / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})
    accuracy, gap = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.9
    assert gap < 1e-5


def test_the_job_of_the_readme_is_a_job():
    import tomllib

    (job,) = fences(REPOSITORY / "README.md", "toml")
    assert job_from(tomllib.loads(job)).algorithm == "vfb2-svrg"


# -- figures -----------------------------------------------------------------------------------------------------------


def measured(name):
    return json.loads(text_of(REPOSITORY / "benchmarks" / "results" / f"{name}.json"))["rows"]


def row_of(command, page=PAPERS):
    (row,) = [line for line in text_of(page).splitlines() if line.startswith(f"| `offbeat {command}")]
    return row


def test_the_readme_tells_five_of_the_figures_word_for_word():
    rows = [line for line in text_of(REPOSITORY / "README.md").splitlines() if re.match(r"\| `(offbeat|make) ", line)]
    assert len(rows) == 5
    told = text_of(PAPERS)
    assert [row for row in rows if row.replace("](docs/explanation/", "](") not in told] == []


def test_what_a_run_gave_is_kept_with_its_commit_and_its_picture(tmp_path):
    out = tmp_path / "out"
    (out / "x").mkdir(parents=True)
    (out / "x" / "paper.png").write_bytes(b"drawn")
    told = {"name": "x", "rows": [], "figures": ["elsewhere/x/paper.png", "elsewhere/x/paper.svg"], "notes": ["so."]}
    (out / "rows.json").write_text(json.dumps(told))
    for part in ("benchmarks/results", "docs/pictures"):
        (tmp_path / part).mkdir(parents=True)
    path = keep.kept(out, False, "abc", tmp_path)
    first = {"command": "offbeat reproduce x", "commit": "abc", "seed": 0, "name": "x"}
    assert json.loads(text_of(path)) == first | {"rows": [], "notes": ["so."]}
    assert (tmp_path / "docs" / "pictures" / "figure-x.png").read_bytes() == b"drawn"
    assert keep.kept(out, True, "abc", tmp_path).name == "x-quick.json"


def test_every_attack_stands_in_a_line_and_the_readme_counts_the_lines():
    place = REPOSITORY / "tests" / "attacks"
    at = importlib.util.spec_from_file_location("attacks_report", place / "report.py")
    report = importlib.util.module_from_spec(at)
    at.loader.exec_module(report)
    listed = [*report.KNOWN, *report.OWN]
    tests = {name for path in place.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", text_of(path), re.M)}
    lines = tuple(beginning for attack in listed for beginning in attack.tests)
    assert tests and {name for name in tests if not name.startswith(lines)} == set()
    working = sum(attack.open for attack in listed)
    told = f"{len(listed)} attacks: {len(listed) - working} get nothing beyond what the pages say; four work"
    assert working == 4 and told in text_of(REPOSITORY / "README.md")


def test_the_tables_of_the_papers_are_those_of_the_kept_results():
    text = text_of(PAPERS)
    assert text == figures.rewritten(text), "run: make pages"
    shown = set(re.findall(r"<!-- figures: ([\w-]+) -->", text))
    assert sorted(set(catalogue("reproduce")) - shown) == [], "each reproduction has its marks in the page"


def test_a_table_is_made_of_rows(tmp_path, monkeypatch):
    rows = [{"setting": "a", "ours": 1.23456, "published": "b|c", "verdict": ""}, {"setting": "d", "ours": None}]
    rows[1] |= {"published": 2, "verdict": "e"}
    kept = {"name": "x", "commit": "abc", "rows": rows, "notes": ["so."]}
    (tmp_path / "x-quick.json").write_text(json.dumps(kept))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    page = "one\n<!-- figures: x -->\nold\n<!-- end -->\ntwo"
    assert "No result of `offbeat reproduce y` is kept." in figures.figures("y")
    assert figures.rewritten(page).splitlines() == [
        "one",
        "<!-- figures: x -->",
        "",
        "`offbeat reproduce x --quick`; commit abc; [kept result](../../benchmarks/results/x-quick.json).",
        "",
        "| Setting | Ours | In print | Verdict |",
        "| --- | --- | --- | --- |",
        "| a | 1.23 | b/c |  |",
        "| d | not reached | 2 | e |",
        "",
        "- so.",
        "",
        "<!-- end -->",
        "two",
    ]


def test_a_page_shows_the_rows_of_a_full_result_that_have_drifted_since(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    for name, commit, ours in (("x", "abc", (1.0, 2.0)), ("x-quick", "def", (1.01, 3.0))):
        rows = [{"setting": s, "ours": o, "published": "", "verdict": ""} for s, o in zip("ab", ours, strict=True)]
        (tmp_path / f"{name}.json").write_text(json.dumps({"commit": commit, "rows": rows}))
    full, since = figures.figures("x").split("**Drifted since.**")
    assert "| a | 1 |" in full and "| b | 2 |" in full
    assert "commit def" in since and "| b | 3 |" in since and "| a |" not in since


def test_the_page_tells_the_private_accuracies_as_they_were_measured():
    told = row_of("reproduce vafl-privacy")
    for name, size, wanted in (
        ("vafl-privacy", "", ("0.5", "1", "4", "16")),
        ("vafl-privacy-quick", " (10,000 rows)", ("1", "4", "16")),
    ):
        found = {row["setting"]: row["ours"] for row in measured(name)}
        values = [found[f"mnist, private, epsilon {epsilon}, delta 1e-05{size}"] for epsilon in wanted]
        assert f"{', '.join(f'{value:.2f}' for value in values)} at epsilon {', '.join(wanted)}" in told


def test_the_page_tells_speeds_on_a_gpu_each_with_its_way():
    told = row_of("bench vafl-gpu")
    for way, said in (
        ("vafl, a thread for each party", "a thread for each party"),
        ("vafl, one thread", "one thread for all"),
    ):
        rows = [row for row in measured("vafl-gpu-h200") if row["way"] == way]
        own = told.partition(f"{said}: ")[2].partition(")")[0]
        assert [float(number) for number in re.findall(r"0\.\d\d", own)] == [
            round(r["of_centralised"], 2) for r in rows
        ]
        assert all(f"{round(row['samples_per_s'], -2):,}" in own for row in rows)


@pytest.mark.parametrize(
    ("files", "delays", "shape"),
    [
        (("vafl-fig3",), "means of 1 to 4 units", "asynchronous {}x, t-synchronous {}x as fast"),
        (("vafl-fig3",), "rare long delays", "gave {}x and {}x"),
        (("vafl-fig4",), "means of 1 to 4 units", "asynchronous {}x, t-synchronous {}x as fast"),
        (("vafl-fig4",), "rare long delays", "gave {}x and {}x"),
        (("vafl-fig5-6",), "means of 1 to 4 units", "asynchronous {}x, t-synchronous {}x as fast"),
        (("vafl-fig7-8",), "means of 1 to 4 units", "asynchronous {}x, t-synchronous {}x as fast"),
    ],
)
def test_the_page_tells_the_range_of_vafl_as_the_files_have_it(files, delays, shape):
    rows = [row for name in files for row in measured(name) if delays in row["setting"]]
    ranges = []
    for kind in ("async", "t-sync"):
        found = [f"{row['ours']:.1f}" for row in rows if re.search(rf": {kind}( \(|$)", row["setting"])]
        ranges.append("-".join(dict.fromkeys((min(found), max(found)))))
    assert shape.format(*ranges) in row_of(f"reproduce {files[0]}`")


# -- files ---------------------------------------------------------------------------------------------------------


def test_files_named_in_the_architecture_exist():
    named = re.findall(r"`([a-z_/]+\.py|[a-z]+/)`", text_of(REPOSITORY / "ARCHITECTURE.md"))
    roots = (REPOSITORY, REPOSITORY / "src" / "offbeat")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_the_reading_path_tells_how_long_files_are():
    rows = re.findall(r"^\| `([a-z_/]+\.py)` \| (\d+) \|", text_of(REPOSITORY / "ARCHITECTURE.md"), re.MULTILINE)
    assert len(rows) >= 5
    for name, told in rows:
        lines = len(text_of(REPOSITORY / "src" / "offbeat" / name).splitlines())
        assert abs(lines - int(told)) <= max(50, lines // 4), f"{name} has {lines} lines; ARCHITECTURE.md says {told}"


# -- decisions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_four_parts_in_order_on_one_page(page):
    text = text_of(page)
    assert text.startswith(f"# {page.stem[:4]}: ")
    assert re.findall(r"^(?:## |\*\*)(\w+)\.?(?:\*\*|$)", text, re.MULTILINE)[: len(DECISION_PARTS)] == list(
        DECISION_PARTS
    )
    assert len(text.splitlines()) <= 60


def test_decisions_have_numbers_of_their_own():
    numbers = [page.stem[:4] for page in DECISIONS]
    assert sorted(set(numbers)) == numbers


# -- house ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_pages_name_no_machine_of_ours(page):
    assert re.findall(r"/(?:work|root|home|tmp)/\S+|file://\S+|https?://(?:localhost|\d+\.)\S*", text_of(page)) == []
