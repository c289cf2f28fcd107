"""The policy changed through the console's form: the lines that change and no other, by the daemon's own reader."""

import re
import threading
import tomllib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadInput
from offbeat.orgs.console import overview
from offbeat.orgs.console.overview import Peer, Watching
from offbeat.orgs.console.policy_pages import GROUPS, form, policy_answer, typed, wanted
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.policy import Policy
from offbeat.orgs.policy_file import changed, doubts, edited, mark_of, policy_history, write_change
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster

NAMES = ("bank", "shop", "telecom")


@pytest.fixture(scope="module")
def identity():
    return new_identity("shop")


@pytest.fixture
def home(tmp_path, identity):
    write_private(tmp_path / "keys" / "shop.key", identity.key_pem)
    (tmp_path / "keys" / "shop.crt").write_bytes(identity.certificate_pem)
    others = [Member(name, new_identity(name).certificate_pem) for name in ("bank", "telecom")]
    write_roster(tmp_path / "roster.toml", PinnedRoster((Member("shop", identity.certificate_pem), *others)))
    (tmp_path / "party.toml").write_text(example("shop", jobs=("credit",), initiators=("bank",)))
    (tmp_path / "shop.csv").write_text("id,age,name\n1,2,3\n")
    return read_home(tmp_path)


def sent(home, **answers):
    """The form as a browser sends it, with some answers changed."""
    fields = {**typed(home.config.policy), **{key: list(values) for key, values in answers.items()}}
    as_sent = {key: [", ".join(values)] if key in NAME_LISTS else values for key, values in fields.items()}
    return {**as_sent, **{f"has-{key}": ["1"] for key in fields}}


NAME_LISTS = ("jobs", "initiators", "leaders", "peers", "methods", "columns_never", "labels_for", "predictions_for")


def test_every_key_of_the_policy_has_a_question():
    page = form(typed(Policy()), NAMES)
    assert re.findall('name="has-([a-z_]+)"', page) == list(Policy.__struct_fields__)
    assert re.findall("<legend>([^<]+)", page) == list(GROUPS.values()) and all(key in page for key in GROUPS)


def test_a_form_that_nobody_touched_changes_nothing(home):
    for on_loss in (["wait", "stop"], ["stop", "wait"]):  # the order of boxes says nothing
        change = changed(home, wanted(sent(home, on_loss=on_loss)))
        assert change.before == change.after


def test_only_the_lines_of_what_was_changed_change(home):
    answers = {"jobs": ["credit", "churn"], "approve": ["by hand"], "row_cap": ["50"], "epsilon": ["4.0"],
               "secure_sum": ["pairwise", "two-tree"], "predict_without": ["true"]}  # fmt: skip
    change = changed(home, wanted(sent(home, **answers)))
    before, after = change.before.splitlines(), change.after.splitlines()
    new = [re.sub(" +#", " #", line) for line in after if line not in before]
    assert new == [
        'jobs = ["credit", "churn"] # names of jobs this party takes part in',
        'approve = "by hand" # "by hand": what the policy allows waits until its owner accepts it',
        'secure_sum = ["pairwise", "two-tree"] # how sums are hidden; "two-tree" is not bound to what was told: '
        "add it knowingly",
        "predict_without = true # whether a prediction may leave out a party that does not answer",
        "row_cap = 50 # how often one row may enter a sum, over all jobs and predictions; 0: no cap",
        "epsilon = 4.0",
    ]
    assert len([line for line in before if line not in after]) == 5
    assert change.config.policy == msgspec.structs.replace(
        home.config.policy, jobs=("credit", "churn"), approve="by hand", row_cap=50, epsilon=4.0,
        secure_sum=("pairwise", "two-tree"), predict_without=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("rows_least", "0", "policy.rows_least must be a whole number of 1 or more; got 0."),
        ("rows_least", "many", "policy.rows_least must be a whole number of 1 or more; got 'many'."),
        ("rows_least", "", "policy.rows_least must be a whole number of 1 or more; got ''."),
        ("epsilon", "-1", "policy.epsilon must be a finite number above 0"),
        ("epsilon", "nan", "policy.epsilon must be a finite number above 0"),
        ("passes_most", "inf", "policy.passes_most must be a finite number above 0; got inf."),
        ("row_cap", "[" * 3000, "policy.row_cap must be a whole number of 0 or more"),
        ("row_cap", "9" * 4999, "policy.row_cap must be a whole number of 0 or more"),
        ("approve", "by luck", 'policy.approve must be one of "by hand", "by policy"'),
        ("derivatives", "perhaps", "policy.derivatives must be true or false"),
        ("columns_never", "agee", "the policy's columns_never lists 'agee'"),
    ],
)
def test_wrong_values_get_a_paragraph_and_what_was_typed_stays(home, key, given, said):
    before = home.file.read_text()
    title, page = policy_answer(home.file, {**sent(home, **{key: [given]}), "step": ["look"]})
    text = page.replace("&#x27;", "'").replace("&quot;", '"')
    assert title == "Change the policy" and said in text and "Nothing was written." in text
    assert key == "approve" or key == "derivatives" or f'value="{given}"' in page
    assert home.file.read_text() == before


def test_looked_at_then_written_with_a_name(home):
    fields = sent(home, initiators=["bank", "telecom"], row_cap=["9"])
    title, page = policy_answer(home.file, {**fields, "step": ["look"]})
    assert title == "The difference"
    assert "A row may enter at most 9 sums, ever." in page and "Uses of a row have no cap." in page
    mark = mark_of(home.file.read_text())
    assert f'value="{mark}"' in page and "+row_cap = 9" in page
    again, page = policy_answer(home.file, {**fields, "step": ["write"], "mark": [mark], "by": [" "]})
    assert again == "The difference" and "say who changes it" in page
    assert policy_answer(home.file, {**fields, "step": ["write"], "mark": [mark], "by": ["Ada"]}) == ("", None)
    assert read_home(home.folder).config.policy.row_cap == 9
    (line,) = policy_history(home)
    assert line["by"] == "Ada" and line["changed"] == {
        "initiators": '["bank"] → ["bank", "telecom"]', "row_cap": "0 → 9",
    }  # fmt: skip
    assert not list(home.folder.glob("*.new"))


def test_a_file_that_was_changed_meanwhile_is_not_overwritten(home):
    change = changed(home, {"row_cap": 9})
    home.file.write_text(home.file.read_text().replace("rows_least = 100 ", "rows_least = 500 "))
    with pytest.raises(BadInput, match="has changed since this difference was shown"):
        write_change(home, change, change.mark, "Ada")
    assert read_home(home.folder).config.policy.rows_least == 500 and policy_history(home) == []
    _, page = policy_answer(
        home.file, {**sent(home, row_cap=["9"]), "step": ["write"], "mark": [change.mark], "by": ["A"]}
    )
    assert "has changed since" in page


def test_the_files_mode_and_its_mark_of_order_stay(home):
    home.file.write_bytes(b"\xef\xbb\xbf" + home.file.read_bytes())
    home.file.chmod(0o640)
    change = changed(home, {"row_cap": 9})
    write_change(home, change, change.mark, "Ada")
    assert home.file.stat().st_mode & 0o777 == 0o640 and read_home(home.folder).config.policy.row_cap == 9


def test_a_policy_that_is_written_in_another_way_stays_so(home):
    text = home.file.read_text().partition("[policy]")[0]
    home.file.write_text('policy.jobs = ["credit"]\n' + text)
    assert changed(read_home(home.folder), {"jobs": ["churn"]}).after == 'policy.jobs = ["churn"]\n' + text
    home.file.write_text('policy = {jobs = ["credit"]} # inline\n' + text)
    assert changed(read_home(home.folder), {"row_cap": 3}).after.startswith(
        'policy = {jobs = ["credit"],row_cap = 3} #'
    )
    home.file.write_text(text)
    assert changed(read_home(home.folder), {"jobs": ["churn"]}).after.endswith('\n[policy]\njobs = ["churn"]\n')


def test_values_over_several_lines_and_sections_behind_the_policy():
    jobs, store = 'jobs = [\n  "a", # first\n  "b",\n]\n', '# about the store\n[store]\nruns = "r"\n'
    text = f"[policy]\n{jobs}# about caps\nrow_cap = 3\n\n{store}"
    assert edited(text, {"jobs": ["c"]}) == text.replace('[\n  "a", # first\n  "b",\n]', '["c"]')
    assert edited(text, {"row_cap": None}) == text.replace("row_cap = 3\n", "")
    assert edited(text, {"epsilon": 2.0}) == text.replace("row_cap = 3\n", "row_cap = 3\nepsilon = 2.0\n")
    assert edited(text.replace("\n", "\r\n"), {"row_cap": 4}) == text.replace("= 3", "= 4").replace("\n", "\r\n")


NAME = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


@given(st.lists(NAME, max_size=3), st.integers(0, 99), NAME, st.sampled_from(["", "  # said # twice", ' # "quoted"']))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_what_was_wanted_whatever_the_names(names, cap, other, comment):
    text = (
        f"[policy]\njobs = {msgspec.json.encode([other]).decode()}{comment}\nrow_cap = 1{comment}\n[data]\nid = 'x'\n"
    )
    after = edited(text, {"jobs": names, "row_cap": cap})
    assert tomllib.loads(after) == {"policy": {"jobs": names, "row_cap": cap}, "data": {"id": "x"}}
    assert after.count(comment.strip()) >= 2


def test_the_console_asks_all_peers_at_once_and_not_under_its_lock(home, monkeypatch):
    both, watching = threading.Barrier(2, timeout=60.0), Watching(home)

    def peer(caller, home, roster, name):
        both.wait()
        return Peer(name, "", "locked" if watching._lock.locked() else "up", True, 9)

    monkeypatch.setattr(overview, "_peer", peer)
    assert [(one.name, one.standing) for one in watching.look().peers] == [("bank", "up"), ("telecom", "up")]


def test_names_that_nobody_has_are_doubted():
    policy = Policy(initiators=("bnak", "any"), methods=("vfb2-svgr", "mine:METHOD"))
    assert doubts(policy, NAMES, ["vfb2-svrg"]) == [
        "initiators names 'bnak', and no party of the roster is called so. Did you mean 'bank'?",
        "methods names 'vfb2-svgr', which is no method. Did you mean 'vfb2-svrg'?",
    ]


def test_what_was_typed_cannot_become_part_of_the_page(home):
    wild = "<script>alert(1)</script>"
    for step in ("look", "edit"):
        _, page = policy_answer(home.file, {**sent(home, jobs=[wild]), "step": [step]})
        assert wild not in page and "&lt;script&gt;" in page
    with pytest.raises(BadInput, match="expected a step"):
        policy_answer(home.file, {"step": ["burn"]})


BREAKS = st.sampled_from(
    ['"', "'", "]", "\n", "\r", "\\", "#", "=", "[data]", 'file = "/etc/passwd"', "\u2028", "\x85", "x"]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(BREAKS, max_size=8).map("".join), st.sampled_from(["jobs", "initiators", "row_cap", "epsilon"]))
def test_what_is_typed_never_becomes_another_line_of_the_file(text, key):
    """Tried: close the string or the list, and go on with a line of one's own."""
    before = example("shop", jobs=("credit",), initiators=("bank",))
    want = wanted({f"has-{key}": ["1"], key: [text]})
    after = edited(before, {k: v for k, v in want.items() if v is not None})
    old, new = tomllib.loads(before), tomllib.loads(after)
    assert {k: v for k, v in new.items() if k != "policy"} == {k: v for k, v in old.items() if k != "policy"}
    assert {k: v for k, v in new["policy"].items() if k != key} == {k: v for k, v in old["policy"].items() if k != key}
    assert new["policy"].get(key) == want[key]
