"""Names of parties, which become names of files; numbers of things, in words."""

import numpy as np
import pytest

from offbeat.data.split import split_columns
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadJob
from offbeat.names import check_party_names, counted

WRONG = ["", ".", "..", "a/b", "../evil", "/abs", "a b", ".hidden", "end.", "-x", "a" * 65, "a\n", "b\0", 1, None]


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_could_be_a_path_is_refused_wherever_parties_are_named(name):
    block = np.zeros((4, 1))
    for attempt in (
        lambda: check_party_names(["bank", name], "the job"),
        lambda: vertical_from_arrays({"bank": block, name: block}, [0, 1, 0, 1]),
        lambda: split_columns(["x", "y"], ["bank", name]),
        lambda: split_columns(["x", "y"], 2, {"bank": ["x"], name: ["y"]}),
    ):
        with pytest.raises(BadJob, match="cannot be a party's name") as refused:
            attempt()
        assert len(str(refused.value)) < 400


def test_ordinary_names_are_accepted():
    check_party_names(["bank", "Bank-2", "a.b", "_x", "7", "x-", "a" * 64], "the job")


def test_one_of_a_thing_is_not_several():
    assert [counted(number, "column") for number in (0, 1, 2, 1200)] == [
        "0 columns", "1 column", "2 columns", "1,200 columns",
    ]  # fmt: skip
    assert [counted(2, noun) for noun in ("party", "class", "day")] == ["2 parties", "2 classes", "2 days"]
