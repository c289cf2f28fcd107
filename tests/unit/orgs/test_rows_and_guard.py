"""A party's own rows, its kept block, its ledger of rows, and the guard around a training party."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadData, BadInput, BadJob, Refused
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgModel, OrgRows
from offbeat.orgs.guards import Guarded, RowsNamed, WatchedRows
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.row_ledger import Reservation, RowLedger
from offbeat.orgs.rows import OwnModel, load_table, own_rows, read_model, write_model
from offbeat.orgs.runs import Run
from offbeat.orgs.tokens import id_column
from offbeat.party.contract import Broadcast, Effect, Event, Finish, Received, Send, Started
from offbeat.party.masked_sum import CERTIFICATE, PRODUCTS, SURVEY, ShareAsked, ShareGiven
from offbeat.runtime.checkpoint import write_checkpoint

JOB = OrgJob(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",), rows=OrgRows(test_fraction=0.25))
CSV = "id,age,colour,paid\na,1,red,yes\nb,2,blue,no\nc,3,red,no\nd,4,green,yes\n"


def home(folder: Path, csv: str = CSV, **changes: str):  # type: ignore[no-untyped-def]
    text = example("bank", label="paid")
    for old, new in changes.items():
        text = text.replace(f"{old} = []", f"{old} = {new}")
    (folder / "party.toml").write_text(text)
    (folder / "bank.csv").write_text(csv)
    return read_home(folder)


def test_rows_come_in_the_agreed_order_with_labels_and_intercept(tmp_path: Path) -> None:
    bank = home(tmp_path)
    table = load_table(bank)
    tokens = [bytes([i]) * 16 for i in range(4)]
    own = own_rows(bank, table, JOB, np.array([2, 0, 3, 1]), tokens)
    assert len(own.tokens_train) == 3 and len(own.tokens_test) == 1
    assert own.train.shape[1] == len(own.fitted.columns)
    order = {bytes([i]) * 16: y for i, y in enumerate([-1.0, 1.0, 1.0, -1.0])}
    assert own.y_train is not None and own.y_train.tolist() == [order[token] for token in own.tokens_train]
    assert own.classes == ("no", "yes")


def test_a_kept_block_scores_rows_of_a_later_file(tmp_path: Path) -> None:
    bank = home(tmp_path)
    table = load_table(bank)
    own = own_rows(bank, table, JOB, np.arange(4), [bytes([i]) * 16 for i in range(4)])
    weights = np.arange(1.0, own.train.shape[1] + 2)  # the intercept last
    write_model(tmp_path / "private", "model", OwnModel(weights, own.fitted, own.classes))
    model = read_model(tmp_path / "private", "model")
    assert model.classes == ("no", "yes")
    later = load_table(home(tmp_path, CSV.replace("d,4,green,yes", "e,9,violet,no\nd,4,green,yes")))
    before, after = model.shares(table, np.array([3, 0])), model.shares(later, np.array([4, 0]))
    assert np.allclose(before, after, atol=1e-12)
    with pytest.raises(BadData, match="no trained block"):
        read_model(tmp_path, "model")


def test_a_party_file_of_before_is_told_what_to_write(tmp_path: Path) -> None:
    text = example("bank").replace(
        'prepare = "auto"', 'one_hot = ["colour"]\nstandardise = true\nmissing = "median"', 1
    )
    (tmp_path / "party.toml").write_text(text)
    with pytest.raises(BadInput, match=r'prepare = "auto".*columns = \{ "colour" = "category" \}'):
        read_home(tmp_path)


def test_a_block_that_an_earlier_version_kept_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "model", {"weights": np.ones(2), "preparation": {"one_hot": ()}, "classes": None})
    with pytest.raises(BadData, match=r"earlier version.*train it anew"):
        read_model(tmp_path, "model")


def test_weights_and_exposure_belong_to_the_labels(tmp_path: Path) -> None:
    csv = "id,age,years,paid\na,1,1,2\nb,2,2,4\nc,3,1,3\nd,4,4,4\n"
    counts = msgspec.structs.replace(
        JOB, model=OrgModel(task="regression", loss="poisson"), rows=OrgRows(test_fraction=0.0)
    )
    tokens = [bytes([i]) * 16 for i in range(4)]

    def rows(key: str, job: OrgJob, table: str = csv):  # type: ignore[no-untyped-def]
        bank = home(tmp_path, table, columns=f'["age"]\n{key} = "years"')
        return own_rows(bank, load_table(bank), job, np.arange(4), tokens)

    own = rows("exposure", counts)
    assert own.y_train.tolist() == [2.0, 2.0, 3.0, 1.0] and own.weights.tolist() == [0.5, 1.0, 0.5, 2.0]
    assert own.fitted.columns == ("age",)
    own = rows("weight", counts)
    assert own.y_train.tolist() == [2.0, 4.0, 3.0, 4.0] and own.weights.tolist() == [0.5, 1.0, 0.5, 2.0]
    elsewhere = msgspec.structs.replace(counts, labels_at=("shop",))
    assert rows("weight", elsewhere).weights.size == 0
    both = msgspec.structs.replace(counts, labels_at=("bank", "shop"))
    with pytest.raises(BadJob, match="goes with the linear methods, one label holder, exact products"):
        rows("weight", both)
    private = msgspec.structs.replace(counts, method=OrgMethod(product_epsilon=1.0))
    with pytest.raises(BadJob, match="exact products"):
        rows("weight", private)
    squared = msgspec.structs.replace(counts, model=OrgModel(task="regression", loss="squared"))
    with pytest.raises(BadJob, match="An exposure is for counts and amounts"):
        rows("exposure", squared)
    with pytest.raises(BadData, match="needs labels of 0 or more; 1 of 4 rows"):
        rows("exposure", counts, csv.replace("a,1,1,2", "a,1,1,-2"))


def test_columns_in_order_need_a_job_that_says_so(tmp_path: Path) -> None:
    bank = home(tmp_path)
    text = (tmp_path / "party.toml").read_text()
    (tmp_path / "party.toml").write_text(
        text.replace('prepare = "auto"', 'prepare = { how = "bins", columns = { age = "rising" } }')
    )
    bank = read_home(tmp_path)
    tokens = [bytes([i]) * 16 for i in range(4)]
    with pytest.raises(BadInput, match=r"nobody may leap.*ordered = true under \[model\]"):
        own_rows(bank, load_table(bank), JOB, np.arange(4), tokens)
    ordered = msgspec.structs.replace(JOB, model=OrgModel(ordered=True))
    assert own_rows(bank, load_table(bank), ordered, np.arange(4), tokens).fitted.orders == ((0, 3, 1),)


def test_columns_the_policy_bans_are_not_read(tmp_path: Path) -> None:
    assert list(load_table(home(tmp_path, columns_never='["age"]')).columns) == ["colour"]
    with pytest.raises(BadInput, match="keeps out of every job"):
        load_table(home(tmp_path, columns='["age", "colour"]', columns_never='["age"]'))


def test_a_job_that_wants_labels_which_are_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "party.toml").write_text(example("bank", data="bank.csv"))
    (tmp_path / "bank.csv").write_text("id,age\na,1\nb,2\nc,3\nd,4\n")
    bank = read_home(tmp_path)
    with pytest.raises(BadData, match="names no label column"):
        own_rows(bank, load_table(bank), JOB, np.arange(4), [bytes([i]) * 16 for i in range(4)])
    assert not OrgModel(intercept=False).intercept


def use(ledger: RowLedger, ids: list[object], counts: list[int], what: str, cap: int = 0) -> None:
    ledger.use(ids, np.array(counts), what=what, asker="bank", who="shop", cap=cap)


def test_the_ledger_counts_rows_over_runs_and_holds_the_cap(tmp_path: Path) -> None:
    ledger = RowLedger(tmp_path / "ledger")
    assert ledger.counts(["a", "b"]).tolist() == [0, 0]
    use(ledger, ["a", "b"], [3, 1], "run-1")
    use(ledger, ["b", 7], [1, 1], "run-2")
    use(ledger, ["b", 7], [1, 1], "run-2")  # a report after a restart
    assert ledger.counts(["a", "b", "7", "new"]).tolist() == [3, 2, 1, 0]
    assert [line["what"] for line in ledger.history()] == ["run-1", "run-2"]
    with pytest.raises(Refused, match=r"'shop' lets a row enter at most 3 sums.*1 of the rows"):
        use(ledger, ["a", "b"], [1, 1], "run-3", cap=3)
    use(ledger, ["a"], [1], "run-3", cap=4)
    assert ledger.counts(["a", "b"]).tolist() == [4, 2], "what is refused is not counted"


def test_a_training_reserves_before_it_uses_and_settles_what_it_used(tmp_path: Path) -> None:
    ledger = RowLedger(tmp_path)
    one = Reservation(ledger, ["a", "b"], what="one", asker="bank", cap=12)
    assert one(1) == 5 and one(5) == 5
    assert RowLedger(tmp_path).counts(["a", "b", "c"]).tolist() == [5, 5, 0], "on the disk before one share left"
    other = Reservation(RowLedger(tmp_path), ["b", "c"], what="other", asker="bank", cap=12)
    assert other(3) == 7 and ledger.counts(["a", "b", "c"]).tolist() == [5, 12, 7], "runs see each other's rows"
    assert one(6) == 0 and one(5) == 5, "'b' has none left"
    one.settle(np.array([2, 4]))
    assert ledger.counts(["a", "b", "c"]).tolist() == [2, 11, 7]
    assert other(8) == 8 and other(9) == 0
    again = Reservation(RowLedger(tmp_path), ["a", "b"], what="one", asker="bank", cap=1000)
    assert [again(needed) for needed in (1, 4, 6, 7)] == [1, 4, 0, 0], "a replay is answered as the run was"
    assert [ledger.granted("one")(needed) for needed in (1, 5, 6)] == [1, 5, 0]
    assert [line["what"] for line in ledger.history()] == ["other", "one"] and "begun" in ledger.history()[0]


def test_without_a_cap_uses_are_counted_all_the_same(tmp_path: Path) -> None:
    reserve = Reservation(RowLedger(tmp_path), ["a"], what="one", asker="bank", cap=0)
    assert [reserve(1), reserve(6), reserve(100)] == [5, 10, 125]
    assert RowLedger(tmp_path).counts(["a"]).tolist() == [125], "a run that was killed stays at what it had reserved"


class Answering:
    """Answers whatever it gets with a share of the rows from `first` on, as a survey's."""

    name = "bank"
    party = SimpleNamespace(roster=SimpleNamespace(peers=("shop",)), problem=SimpleNamespace(outputs=1))

    def rows_asked(self, asker: str, number: int) -> tuple[int, int]:
        return number, number + 2

    def handle(self, event: Event) -> list[Effect]:
        if not isinstance(event, Received):
            return []
        asked = event.body
        assert isinstance(asked, ShareAsked)
        words = np.zeros(asked.count, np.uint64)
        return [Send(event.sender, ShareGiven(0, asked.kind, asked.survey, asked.first, words, 0, 0.0))]

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore(self, state: object) -> None: ...


def guarded(tokens: list[bytes], cap: int = 0) -> Guarded:
    rows = WatchedRows("bank", tokens, reserve=lambda needed: 0 if cap and needed > cap else needed, cap=cap)
    return Guarded(Answering(), rows)  # type: ignore[arg-type]


def test_rows_are_named_at_the_beginning_and_rows_that_differ_end_the_run() -> None:
    (named,) = guarded([b"a", b"b", b"c"]).handle(Started())
    assert isinstance(named, Broadcast) and isinstance(named.body, RowsNamed) and named.to == ("shop",)
    assert guarded([b"a", b"b", b"c"]).handle(Received("bank", named.body)) == []
    for other in ([b"a", b"b", b"x"], [b"b", b"a", b"c"], [b"a", b"b"]):
        *_, finish = guarded(other).handle(Received("bank", named.body))
        assert isinstance(finish, Finish) and finish.verdict == "misaligned"
        assert "the rows of 'bank'" in finish.reason


@pytest.mark.parametrize("kind", [SURVEY, PRODUCTS])
def test_a_row_of_which_too_many_shares_would_leave_ends_the_run(kind: int) -> None:
    shop = guarded([b"a", b"b", b"c"], cap=2)
    asks = [ShareAsked(0, kind, survey, first, 2, 0) for survey, first in ((1, 0), (2, 1), (3, 1))]
    for ask in asks[:2]:
        (effect,) = shop.handle(Received("bank", ask))
        assert isinstance(effect, Send)
    assert shop.rows.asked.tolist() == [1, 2, 1]
    copy = guarded([b"a", b"b", b"c"], cap=2)
    copy.restore(shop.snapshot())
    for party in (shop, copy):
        *_, finish = party.handle(Received("bank", asks[2]))
        assert isinstance(finish, Finish) and finish.verdict == "row-cap"
        assert not any(isinstance(effect, Send) for effect in party.handle(Received("bank", asks[2])))


def test_numbers_about_weights_use_no_row() -> None:
    shop = guarded([b"a", b"b", b"c"], cap=1)
    for survey in (1, 2, 3):
        (effect,) = shop.handle(Received("bank", ShareAsked(0, CERTIFICATE, survey, 0, 9, 0)))
        assert isinstance(effect, Send)
    assert shop.rows.asked.tolist() == [0, 0, 0]


def test_missing_ids_do_not_hide_others() -> None:
    column = id_column(np.array([None, "a"], dtype=object), b"s")
    assert column.rows.tolist() == [1]


def test_a_toss_anew_that_this_party_did_not_need_is_in_its_record() -> None:
    """Whoever says that its alignment no longer holds has the test rows drawn again, without a run that fails."""
    aligned = {"rows": [0, 1], "notes": ()}
    for offered, noted in (({"run": "credit-1"}, True), ({"run": ""}, False), (None, False)):
        own = SimpleNamespace(taken_over="", kept={"offered": offered}.get)
        run: Any = SimpleNamespace(home=SimpleNamespace(name="shop"), job=JOB, own=own)
        notes = " ".join(Run._alignment_notes(run, range(3), aligned))  # type: ignore[arg-type]
        assert "2 of the 3 rows of 'shop'" in notes
        assert ("'shop' had kept the order of run 'credit-1': the test rows are drawn anew" in notes) == noted
