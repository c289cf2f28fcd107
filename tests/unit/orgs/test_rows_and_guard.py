"""A party's own rows, its kept block, its ledger of rows, and the guard around a training party."""

from pathlib import Path

import numpy as np
import pytest

from offbeat.errors import BadData, BadInput, Refused
from offbeat.jobs.organisations import Job, Model, Rows
from offbeat.orgs.guard import Guarded, RowsNamed
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.row_ledger import RowLedger, refuse_rows_over_cap
from offbeat.orgs.rows import OwnModel, load_table, own_rows, read_model, write_model
from offbeat.orgs.tokens import id_column
from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party.contract import Broadcast, Effect, Event, Finish, Received, Started
from offbeat.party.masked_sum import ShareAsked
from offbeat.runtime.checkpoint import write_checkpoint

JOB = Job(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",), rows=Rows(test_fraction=0.25))
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
    assert own.train.shape[1] == len(own.fitted.columns) + 1 and np.all(own.train[:, -1] == 1.0)
    order = {bytes([i]) * 16: y for i, y in enumerate([-1.0, 1.0, 1.0, -1.0])}
    assert own.y_train is not None and own.y_train.tolist() == [order[token] for token in own.tokens_train]
    assert own.classes == ("no", "yes")


def test_a_kept_block_scores_rows_of_a_later_file(tmp_path: Path) -> None:
    bank = home(tmp_path)
    table = load_table(bank)
    own = own_rows(bank, table, JOB, np.arange(4), [bytes([i]) * 16 for i in range(4)])
    weights = np.arange(1.0, own.train.shape[1] + 1)
    write_model(tmp_path / "private", "model", OwnModel(weights, own.fitted, True, own.classes))
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
    assert not Model(intercept=False).intercept


def test_the_ledger_counts_rows_over_runs_and_holds_the_cap(tmp_path: Path) -> None:
    ledger = RowLedger(tmp_path / "ledger")
    assert ledger.counts(["a", "b"]).tolist() == [0, 0]
    ledger.add(["a", "b"], np.array([3, 1]), what="run-1", asker="bank")
    ledger.add(["b", 7], np.array([1, 1]), what="run-2", asker="shop")
    ledger.add(["b", 7], np.array([1, 1]), what="run-2", asker="shop")  # a report after a restart
    assert ledger.counts(["a", "b", "7", "new"]).tolist() == [3, 2, 1, 0]
    assert [line["what"] for line in ledger.history()] == ["run-1", "run-2"]
    refuse_rows_over_cap(4, ledger.counts(["a"]), 1, "bank")
    refuse_rows_over_cap(0, ledger.counts(["a"]), 99, "bank")
    with pytest.raises(Refused, match="1 of the 2 rows"):
        refuse_rows_over_cap(3, ledger.counts(["a", "b"]), 1, "bank")


class Asking:
    """Asks for rows [0, 2) whenever it starts, and answers nothing."""

    name = "bank"

    def handle(self, event: Event) -> list[Effect]:
        asked = ShareAsked(0, 0, 2, -1, 0, 0, 0)
        return [Broadcast(("shop",), asked)] if isinstance(event, Started) else []

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore(self, state: object) -> None: ...


def guarded(tokens: list[bytes], cap: int = 0) -> Guarded:
    rows = WatchedRows("bank", tokens, cap=cap, before=np.zeros(len(tokens), np.int64))
    return Guarded(Asking(), rows)  # type: ignore[arg-type]


def test_a_range_is_named_once_before_it_is_asked_for() -> None:
    bank = guarded([b"a", b"b", b"c"])
    first, second = bank.handle(Started()), bank.handle(Started())
    assert [type(effect.body) for effect in first] == [RowsNamed, ShareAsked]  # type: ignore[union-attr]
    assert [type(effect.body) for effect in second] == [ShareAsked]  # type: ignore[union-attr]


def test_rows_that_differ_end_the_run_at_once() -> None:
    (named, _) = guarded([b"a", b"b", b"c"]).handle(Started())
    assert isinstance(named, Broadcast)
    assert guarded([b"a", b"b", b"x"]).handle(Received("bank", named.body)) == []
    *_, finish = guarded([b"b", b"a", b"c"]).handle(Received("bank", named.body))
    assert isinstance(finish, Finish) and finish.verdict == "misaligned"
    assert "rows 0 to 2 of 'bank'" in finish.reason


def test_a_row_that_is_asked_for_too_often_ends_the_run() -> None:
    shop = guarded([b"a", b"b", b"c"], cap=2)
    asks = [ShareAsked(first, 0, 2, -1, 0, 0, 0) for first in (0, 2, 4)]
    assert shop.handle(Received("bank", asks[0])) == []
    assert shop.handle(Received("bank", asks[0])) == [], "a repeated request is answered from memory"
    assert shop.handle(Received("bank", asks[1])) == []
    again = guarded([b"a", b"b", b"c"], cap=2)
    again.restore(shop.snapshot())
    *_, finish = again.handle(Received("bank", asks[2]))
    assert isinstance(finish, Finish) and finish.verdict == "row-cap" and "row_cap" in finish.reason


def test_missing_ids_do_not_hide_others() -> None:
    column = id_column(np.array([None, "a"], dtype=object), b"s")
    assert column.rows.tolist() == [1]
