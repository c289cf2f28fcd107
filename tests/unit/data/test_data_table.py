"""Reading one party's file, in every format, and refusing what cannot be learned from."""

import bz2
import gzip
import io
import lzma
import zipfile
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

from offbeat.data.fitting import fit_preparation
from offbeat.data.preparation import Preparation
from offbeat.data.prepare import fitted_from, state_of
from offbeat.data.table import Table, read_table, table_from_arrays
from offbeat.errors import BadData

COMPRESS = {"": lambda b: b, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}

FRAME = pd.DataFrame(
    {"customer": [12, 7, 30], "age": [41.5, 28.0, 63.25], "limit": [1000, 2500, 300], "default": [1, 0, 0]}
)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    return stream.getvalue()


def npz_bytes(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def check(table: Table) -> None:
    assert table.ids.tolist() == [12, 7, 30]
    assert table.ids.dtype == np.int64
    assert list(table.columns) == ["age", "limit"]
    np.testing.assert_array_equal(table.features, [[41.5, 1000], [28.0, 2500], [63.25, 300]])
    assert table.features.dtype == np.float64
    assert table.labels is not None
    assert table.labels.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(("kind", "write"), [(".csv", csv_bytes), (".parquet", parquet_bytes)])
def test_frames_in_every_compression(tmp_path: Path, kind: str, write, ending: str) -> None:
    file = tmp_path / f"bank{kind}{ending}"
    file.write_bytes(COMPRESS[ending](write(FRAME)))
    check(read_table(file, id="customer", label="default"))


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("kind", [".svm", ".libsvm", ".txt"])
def test_libsvm_in_every_compression(tmp_path: Path, kind: str, ending: str) -> None:
    file = tmp_path / f"bank{kind}{ending}"
    file.write_bytes(COMPRESS[ending](b"+1 1:0.5 3:2\n-1 2:1e-3 # a remark\n+1 4:7\n"))
    table = read_table(file, label="label")
    assert sp.issparse(table.features)
    np.testing.assert_array_equal(table.features.toarray(), [[0.5, 0, 2, 0], [0, 1e-3, 0, 0], [0, 0, 0, 7]])
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, 1]
    assert table.ids.tolist() == [0, 1, 2]
    assert read_table(file).labels is None


@pytest.mark.parametrize("ending", COMPRESS)
def test_dense_npz(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"bank.npz{ending}"
    arrays = {"X": FRAME[["age", "limit"]].to_numpy(float), "y": np.array([1, 0, 0]), "ids": np.array([12, 7, 30])}
    file.write_bytes(COMPRESS[ending](npz_bytes(**arrays, columns=np.array(["age", "limit"]))))
    check(read_table(file, label="y"))


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_sparse_npz_as_scipy_writes_it(tmp_path: Path, form: str) -> None:
    matrix = sp.random(6, 9, density=0.3, format=form, random_state=np.random.default_rng(1))
    sp.save_npz(tmp_path / "shop.npz", matrix)
    table = read_table(tmp_path / "shop.npz")
    assert sp.issparse(table.features)
    assert table.features.format == "csr"
    np.testing.assert_array_equal(table.features.toarray(), matrix.toarray())
    assert table.columns[4] == "x4"


def test_idx_pictures_with_labels_beside_them(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    header = bytes([0, 0, 8, 3]) + np.array([3, 2, 2], dtype=">u4").tobytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
    (tmp_path / "labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
    table = read_table(tmp_path / "train-images-idx3-ubyte.gz", label="labels-idx1-ubyte")
    np.testing.assert_array_equal(table.features, pixels.reshape(3, 4))
    assert table.labels is not None
    assert table.labels.tolist() == [5, 0, 4]


def test_ids_keep_their_zeros_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n007,1\n7,2\nEve ,3\n")
    assert read_table(tmp_path / "a.csv", id="id").ids.tolist() == ["007", "7", "Eve"]


def test_chosen_columns_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(csv_bytes(FRAME))
    table = read_table(tmp_path / "a.csv", id="customer", columns=["limit", "age"])
    assert list(table.columns) == ["limit", "age"]
    np.testing.assert_array_equal(table.features[0], [1000, 41.5])


def test_text_columns_are_coded_and_spelled(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,region,x\n1,south,1\n2,north,2\n3,,3\n4,south,4\n")
    table = read_table(tmp_path / "a.csv", id="id", text=["region"], missing="keep")
    np.testing.assert_array_equal(table.features[:, 0], [1, 0, np.nan, 1])
    assert table.levels == {"region": ("north", "south")}


def test_byte_order_mark_and_text_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid,x,good\n1,1,yes\n2,2,no\n")
    table = read_table(tmp_path / "a.csv", id="id", label="good")
    assert table.labels is not None
    assert table.labels.tolist() == ["yes", "no"]


# -- bad input -----------------------------------------------------------------------------------------------------

BAD_CSV = {
    "no id column": ("id,x\n1,2\n", {"id": "ids"}, ["no id column 'ids'", "'id'"]),
    "no label column": ("id,default\n1,2\n", {"id": "id", "label": "defautl"}, ["no label column", "'default'"]),
    "no such feature": ("id,age\n1,2\n", {"id": "id", "columns": ["agee"]}, ["no feature column 'agee'", "'age'"]),
    "duplicate ids": ("id,x\n5,1\n6,2\n5,3\n", {"id": "id"}, ["id '5' stands in 2 rows", "rows 1, 3", "keep-first"]),
    "missing id": ("id,x\n5,1\n,2\n", {"id": "id"}, ["column 'id'", "row 2 has no id"]),
    "text": ("id,x,z\n1,2,3\n2,3,oops\n", {"id": "id"}, ["column 'z'", "row 2", "'oops'", "category"]),
    "empty cell": ("id,x\n1,2\n2,\n", {"id": "id"}, ["column 'x'", "row 2", "empty cell", "median"]),
    "infinite": ("id,x\n1,2\n2,3\n3,-inf\n", {"id": "id"}, ["column 'x'", "row 3", "-inf"]),
    "missing label": ("id,x,y\n1,2,1\n2,3,\n", {"id": "id", "label": "y"}, ["label column 'y'", "row 2 has no label"]),
    "no rows": ("id,x\n", {"id": "id"}, ["no rows"]),
    "nothing": ("", {}, ["is empty"]),
    "only an id": ("id\n1\n", {"id": "id"}, ["no feature column"]),
    "repeated header": ("id,x,x\n1,2,3\n", {"id": "id"}, ["names column 'x' 2 times"]),
    "no column wanted": ("id,x\n1,2\n", {"id": "id", "columns": []}, ["columns = []", "leave `columns` out"]),
    "a column twice": ("id,x\n1,2\n", {"id": "id", "columns": ["x", "x"]}, ["lists 'x' more than once"]),
    "thousands": ('id,x\n1,"1,234"\n2,"5,678"\n', {"id": "id"}, ["column 'x'", "'1,234'", "group thousands"]),
    "row too long": ("id,x\n1,2\n2,3,4\n", {"id": "id"}, ["not a table"]),
    "all rows too long": ("id,x\n1,2,9\n2,3,9\n", {"id": "id"}, ["not a table"]),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv_is_refused_with_file_row_and_column(tmp_path: Path, case: str) -> None:
    text, options, expected = BAD_CSV[case]
    (tmp_path / "shop.csv").write_text(text)
    with pytest.raises(BadData) as refused:
        read_table(tmp_path / "shop.csv", **options)
    message = str(refused.value)
    assert "shop.csv" in message
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("x\n1\n")
    with pytest.raises(BadData, match=r"no file .*bnak\.csv.*Near it: bank\.csv"):
        read_table(tmp_path / "bnak.csv")
    with pytest.raises(BadData, match="nor a folder"):
        read_table(tmp_path / "nowhere" / "bank.csv")


def test_unknown_ending_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"\.parquet"):
        read_table(tmp_path / "bank.docx")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.parquet", "a.npz", "a.csv.xz", "a-idx3-ubyte"])
def test_bytes_of_another_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is not what the name says")
    with pytest.raises(BadData, match=name):
        read_table(tmp_path / name)


def test_bad_libsvm_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n-1 2:x\n")
    with pytest.raises(BadData, match=r"a\.svm, row 2.*'2:x'"):
        read_table(tmp_path / "a.svm")
    (tmp_path / "b.svm").write_text("1 1:2\n")
    with pytest.raises(BadData, match="no id column"):
        read_table(tmp_path / "b.svm", id="customer")


def test_npz_without_the_arrays_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(npz_bytes(X=np.ones((2, 2)), y=np.ones(2)))
    with pytest.raises(BadData, match="no label array 'labels'"):
        read_table(tmp_path / "a.npz", label="labels")
    (tmp_path / "b.npz").write_bytes(npz_bytes(features=np.ones((2, 2))))
    with pytest.raises(BadData, match="neither an array 'X'"):
        read_table(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(npz_bytes(X=np.ones((2, 2)), y=np.ones(3)))
    with pytest.raises(BadData, match="2 rows but 3 labels"):
        read_table(tmp_path / "c.npz", label="y")


def test_nonfinite_value_in_a_sparse_table_is_located() -> None:
    matrix = sp.csr_matrix(np.array([[0, 1.0], [0, 0], [np.inf, 0]]))
    with pytest.raises(BadData, match=r"column 'x0', row 3"):
        table_from_arrays(matrix)


def test_data_frames_in_memory() -> None:
    frame = pd.DataFrame({"kind": ["b", "a", "b"], "x": [1, 2, 3]})
    table = table_from_arrays(frame, text=("elsewhere",))
    np.testing.assert_array_equal(table.features, [[1, 1], [0, 2], [1, 3]])
    assert table.levels == {"kind": ("a", "b")}
    assert table_from_arrays(frame, text=("x",)).levels["x"] == ("1", "2", "3")


def test_what_a_column_of_a_frame_holds_is_found_out() -> None:
    frame = pd.DataFrame(
        {
            "flag": [True, False, True],
            "grade": pd.Categorical(["low", None, "high"]),
            "day": pd.to_datetime(["1970-01-02 00:00", "1970-01-03 12:00", None]),
            "written": ["1970-01-11", None, "1970-01-02"],
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "mixed": np.array([1, "b", "c"], dtype=object),
        }
    )
    table = table_from_arrays(frame)
    nan = np.nan
    expected = [[1, 1, 1, 10, 1, 0], [0, nan, 2.5, nan, nan, 1], [1, 0, nan, 1, 3, 2]]
    np.testing.assert_array_equal(table.features, expected)
    assert table.levels == {"flag": ("False", "True"), "grade": ("high", "low"), "mixed": ("1", "b", "c")}
    assert table.dates == ("day", "written")
    two_levels = pd.DataFrame(np.eye(2), columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    assert list(table_from_arrays(two_levels).columns) == ["a x", "a y"]
    with pytest.raises(BadData, match=r"Complex data not supported.*'x'"):
        table_from_arrays(pd.DataFrame({"x": [1j]}))
    lasting = pd.DataFrame(
        {"x": pd.to_timedelta([36, None], unit="h"), "month": pd.PeriodIndex(["1970-02", None], freq="M")}
    )
    np.testing.assert_array_equal(table_from_arrays(lasting).features, [[1.5, 31], [nan, nan]])
    assert table_from_arrays(lasting).dates == ("month",)


FILES = {
    "semicolons and decimal commas": b"id;x;kind\n1;1,5;a\n2;-2,25;b\n",
    "tabs in a .csv": b"id\tx\tkind\n1\t1.5\ta\n2\t-2.25\tb\n",
    "bars": b"id|x|kind\n1|1.5|a\n2|-2.25|b\n",
    "quotes around a separator": b'id,x,kind\n"1","1.5","a"\n"2",-2.25,b\n',
    "a byte order mark": b"\xef\xbb\xbfid;x;kind\n1;1.5;a\n2;-2.25;b\n",
    "UTF-16": "id;x;kind\n1;1,5;a\n2;-2,25;b\n".encode("utf-16"),
    "Windows line ends": b"id,x,kind\r\n1,1.5,a\r\n2,-2.25,b\r\n",
}


@pytest.mark.parametrize("case", FILES)
def test_the_form_of_a_file_is_found_out(tmp_path: Path, case: str) -> None:
    (tmp_path / "a.csv").write_bytes(FILES[case])
    table = read_table(tmp_path / "a.csv", id="id")
    assert table.ids.tolist() == [1, 2]
    np.testing.assert_array_equal(table.features, [[1.5, 0], [-2.25, 1]])
    assert table.levels == {"kind": ("a", "b")}


def test_a_separator_inside_quotes_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,x,place\n1,2,"a; b; c; d"\n2,3,"e; f; g; h"\n')
    assert read_table(tmp_path / "a.csv", id="id").levels == {"place": ("a; b; c; d", "e; f; g; h")}


# -- files as strangers save them ------------------------------------------------------------------------------------


def read_text(folder: Path, lines: str, encoding: str = "utf-8", **wanted: object) -> Table:
    file = folder / "table.csv"
    file.write_bytes(lines.encode(encoding))
    return read_table(file, missing="keep", **wanted)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("45.1%", "3 %", "-0.5%"), (45.1, 3, -0.5)),
        (("€12.50", "€3", "€0.99"), (12.5, 3, 0.99)),
        (('"$1,234.50"', "$980.00", '"$2,000,000.25"'), (1234.5, 980, 2000000.25)),
        (('"1,234,567"', "980", '"2,000"'), (1234567, 980, 2000)),
        (("CHF 12'000.50", "CHF 3", "CHF -0.99"), (12000.5, 3, -0.99)),
        (('"12,345 USD"', '"1,000 USD"', "7 USD"), (12345, 1000, 7)),
        (("34 years", "1 year", "5 years"), (34, 1, 5)),
        (("45.2k", "3k", "−2k"), (45.2, 3, -2)),
        (("(12.50)", "3.25", "-1"), (-12.5, 3.25, -1)),
        (("5695.02-", "12.50", '"1,234.00− "'), (-5695.02, 12.5, -1234)),
        (('"12,5"', '"0,25"', "3"), (12.5, 0.25, 3)),
        (('"1\u00a0234,50"', '"12,00"'), (1234.5, 12)),
        (("1e5", "2e5", "3"), (1e5, 2e5, 3)),
        (("31.12.1970", "02.01.1970", "1.1.1970"), (364, 1, 0)),
        (("31/12/1970", "02/01/1970"), (364, 1)),
        (("12/31/1970", "01/02/1970"), (364, 1)),
        (("12-31-70 06:00 PM", "01-02-70 12:00 AM"), (364.75, 1)),
        (('"December 31, 1970"', "2 January 1970", "1970-01-03", "4.1.70"), (364, 1, 2, 3)),
        (("1970-02", "1970-01"), (31, 0)),
        (("12:30 AM", "12:30 pm", "1:00 PM"), (0.5, 12.5, 13)),
        (("1970/12/31", "1970/01/02", ""), (364, 1, np.nan)),
        (("31 Dec 1970", "02 Jan 1970", "01 Jan 1970"), (364, 1, 0)),
        (("01.01.1970 12:00", "02.01.1970 06:00", "01.01.1970 00:00"), (0.5, 1.25, 0)),
    ],
)
def test_dressed_numbers_and_dates_are_read(tmp_path: Path, cells: tuple[str, ...], values: tuple[float, ...]) -> None:
    table = read_text(tmp_path, "id,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)), id="id")
    np.testing.assert_allclose(np.asarray(table.features)[:, 0], values)
    assert not table.levels


@pytest.mark.parametrize(
    "cells",
    [
        ("007", "041", "007"),
        ("2-", "1", "3-"),
        ("20-00-00", "40-13-25"),
        ("5 kg", "7 m"),
        ("1A", "2B"),
        ("10-19", "20-29"),
    ],
)
def test_codes_and_numbers_of_several_units_are_text(tmp_path: Path, cells: tuple[str, ...]) -> None:
    table = read_text(tmp_path, "id,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)), id="id")
    assert table.levels == {"x": tuple(sorted({*cells}))} and not table.forms


def test_letters_beside_a_few_numbers_are_a_mistake_and_no_unit(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"row 3: expected a number, came '7x' \(1 such cells, and 2 numbers\)"):
        read_text(tmp_path, "id,x\n1,12\n2,15\n3,7x\n", id="id")


def test_new_rows_are_read_as_those_before() -> None:
    days, sums = ["31/12/1970", "02/01/1970", "05/01/1970"], ["12,5", "1234,5", "3,25"]
    first = table_from_arrays(pd.DataFrame({"day": days, "sum": sums, "rate": ["4 %", "5 %", "6 %"]}))
    assert first.forms == {"day": "date, the day first", "sum": ",", "rate": "%"}
    fitted = fit_preparation(first.features, first.columns, Preparation(), first.levels, first.forms)
    row = pd.DataFrame({"day": ["03/02/1970"], "sum": ["1,234"], "rate": ["5%"]})
    later = table_from_arrays(row, forms=fitted.forms)
    np.testing.assert_allclose(fitted.recoded(later), [[33, 1.234, 5]])
    with pytest.raises(BadData, match="nobody can tell the day from the month"):
        table_from_arrays(row[["day"]])
    for column, cell, said in (
        ("rate", "0.05", "numbers with % were expected, as in the training rows; came numbers"),
        ("sum", "12 kg", "numbers were expected, as in the training rows; came numbers with kg"),
        ("day", "5", "dates were expected, as in the training rows; came numbers"),
    ):
        with pytest.raises(BadData, match=said):
            fitted.recoded(table_from_arrays(row.assign(**{column: [cell]}), forms=fitted.forms))
    kept = fitted_from(state_of(fitted))
    assert kept.forms == fitted.forms
    old = {key: value for key, value in state_of(fitted).items() if key != "forms"}
    assert fitted_from({**old, "dates": ("day",)}).forms == {"day": "date"}


def test_categories_that_differ_by_capitals_and_spaces_are_one_unless_they_are_wanted_apart() -> None:
    frame = pd.DataFrame({"town": ["Bern", "BERN ", "New  York", "bern", "New York", "Bern", "Basel"]})
    table = table_from_arrays(frame)
    assert table.levels == {"town": ("Basel", "Bern", "New York")} and "'bern' as 'Bern'" in table.notes[0]
    apart = table_from_arrays(frame, text=["town"])
    assert apart.levels["town"] == ("BERN", "Basel", "Bern", "New  York", "New York", "bern") and not apart.notes
    fitted = fit_preparation(table.features, table.columns, Preparation(), table.levels)
    later = table_from_arrays(pd.DataFrame({"town": ["BASEL", "new york", "Paris"]}), text=["town"])
    np.testing.assert_array_equal(fitted.recoded(later), [[0], [2], [-1]])


@pytest.mark.parametrize(
    "lines",
    [
        "sep=;\nid;x\n1;2\n2;3\n",
        "# made on Monday\n\nid,x\n1,2\n2,3\n",
        "id,x,\n1,2,\n2,3,\n",
        "#id,x\n1,2\n2,3\n",
    ],
)
def test_remarks_before_the_header_and_empty_columns_behind_are_left_out(tmp_path: Path, lines: str) -> None:
    table = read_text(tmp_path, lines, id="#id" if lines.startswith("#id") else "id")
    assert table.columns == ("x",) and table.ids.tolist() == [1, 2]
    np.testing.assert_array_equal(table.features, [[2], [3]])


def test_archives_and_text_files_hold_tables_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w") as archive:
        archive.writestr("a.csv", "id,x\n1,2\n")
    assert read_table(tmp_path / "a.csv.zip", id="id").columns == ("x",)
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "a") as archive:
        archive.writestr("b.csv", "id,x\n1,2\n")
    with pytest.raises(BadData, match="holds 2 files"):
        read_table(tmp_path / "a.csv.zip", id="id")
    (tmp_path / "a.txt").write_text("id\tx\n1\t2\n")
    assert read_table(tmp_path / "a.txt", id="id").columns == ("x",)


def test_labels_with_a_unit_are_numbers_and_those_not_known_are_none(tmp_path: Path) -> None:
    table = read_text(tmp_path, 'id,x,y\n1,2,"€1,250.50"\n2,3,€7\n', id="id", label="y")
    np.testing.assert_array_equal(table.labels, [1250.5, 7])
    with pytest.raises(BadData, match="row 2 has no label"):
        read_text(tmp_path, "id,x,y\n1,2,0\n2,3,?\n3,4,1\n4,5,1\n", id="id", label="y")


@pytest.mark.parametrize(
    ("cells", "values", "words"),
    [
        (("12", "?", "7", " Unknown ", "?"), (12, np.nan, 7, np.nan, np.nan), "'?' (2), 'Unknown ' (1)"),
        (("-", "-", "-", "4.5", "n.a."), (np.nan, np.nan, np.nan, 4.5, np.nan), "'-' (3), 'n.a.' (1)"),
        (("45%", "unknown", "3 %"), (45, np.nan, 3), "'unknown' (1)"),
        (("1970-01-02", "--", "1970-01-03"), (1, np.nan, 2), "'--' (1)"),
        (("02.01.1970", "not known", "03.01.1970"), (1, np.nan, 2), "'not known' (1)"),
        (("06:30", "missing", "7:15:36"), (6.5, np.nan, 7.26), "'missing' (1)"),
    ],
)
def test_words_for_nothing_among_numbers_are_missing_values_and_told_of(tmp_path: Path, cells, values, words) -> None:
    table = read_text(tmp_path, "id,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)), id="id")
    np.testing.assert_allclose(np.asarray(table.features)[:, 0], values)
    assert not table.levels
    assert words in table.notes[-1] and "'x'" in table.notes[-1] and '"x" = "category"' in table.notes[-1]


def test_words_for_nothing_among_words_are_a_category_and_other_words_a_mistake(tmp_path: Path) -> None:
    table = read_text(tmp_path, "id,x,y\n1,yes,?\n2,unknown,-\n3,no,?\n", id="id")
    assert table.levels == {"x": ("no", "unknown", "yes"), "y": ("-", "?")} and not table.notes
    with pytest.raises(BadData, match=r"row 3: expected a number, came 'old' \(1 such cells"):
        read_text(tmp_path, "id,x\n1,1\n2,?\n3,old\n4,2\n5,3\n", id="id")
    frame = pd.DataFrame({"x": [1, "n/a", 2.5], "when": [date(1970, 1, 2), "unknown", None]})
    table = table_from_arrays(frame)
    np.testing.assert_array_equal(table.features, [[1, 1], [np.nan, np.nan], [2.5, np.nan]])
    assert len(table.notes) == 2 and table.dates == ("when",)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("1970-01-02T00:00:00+02:00", "1970-01-01T12:00:00Z", "1970-01-03T06:00:00-06:00"), (22 / 24, 0.5, 2.5)),
        (("1970-01-02 00:00:00 UTC", "1970-01-01 12:00:00 UTC", "1970-01-03 06:00:00 GMT"), (1, 0.5, 2.25)),
        (("02.01.1970 06:00:00", "01.01.1970 12:00:00"), (1.25, 0.5)),
        (("1970/01/02 06:00", "1970/01/01 12:00"), (1.25, 0.5)),
    ],
)
def test_moments_with_zones_are_days_in_one_zone(tmp_path: Path, cells, values) -> None:
    table = read_text(tmp_path, "id,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)), id="id")
    np.testing.assert_allclose(np.asarray(table.features)[:, 0], values)
    assert table.dates == ("x",)


def test_times_of_day_are_hours() -> None:
    zoned = [datetime(1970, 1, 2, tzinfo=timezone(timedelta(hours=h))) for h in (-6, 0, 6)]
    frame = pd.DataFrame({"open": ["06:30", "12:00+02:00", None], "shut": [time(18, 45), time(0), None], "z": zoned})
    table = table_from_arrays(frame)
    np.testing.assert_array_equal(table.features, [[6.5, 18.75, 1.25], [12, 0, 1], [np.nan, np.nan, 0.75]])
    assert table.dates == ("z",)
    assert table.notes[0] == "Column 'open' holds times of day: they count as hours since midnight, zones left aside."


def test_decimal_commas_may_have_groups_and_signs(tmp_path: Path) -> None:
    table = read_text(tmp_path, "id;x;y\n1;1.234,50;12,5%\n2;7,25;3%\n3;12;4,25 %\n", id="id")
    np.testing.assert_array_equal(table.features, [[1234.5, 12.5], [7.25, 3], [12, 4.25]])


def test_points_in_a_file_with_semicolons_are_points(tmp_path: Path) -> None:
    table = read_text(tmp_path, "id;x\n1;1.234\n2;2.345\n3;1.500\n", id="id")
    np.testing.assert_array_equal(np.asarray(table.features)[:, 0], [1.234, 2.345, 1.5])


def test_cells_of_another_kind_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"row 4: expected a number, came 'free' .*\"x\" = \"category\""):
        read_text(tmp_path, "id,x\n1,€1.50\n2,€2.50\n3,€3.50\n4,free\n", id="id")


def test_what_is_left_out_is_not_looked_at(tmp_path: Path) -> None:
    text = "id,x,when\n" + "".join(f"{k},{'old' if k == 3 else k},0{k}/0{k}/2020\n" for k in range(1, 9))
    with pytest.raises(BadData, match="expected a number, came"):
        read_text(tmp_path, text, id="id")
    kept = Preparation(columns={"x": "leave-out", "when": "leave-out"}).as_text
    assert read_text(tmp_path, text, id="id", text=kept).columns == ("x", "when")


def test_windows_files_are_read_and_told_of(tmp_path: Path) -> None:
    table = read_text(tmp_path, "id;town\n1;Köln\n2;Zürich\n", encoding="cp1252", id="id")
    assert table.levels == {"town": ("Köln", "Zürich")}
    assert table.notes == ("table.csv is not UTF-8 and was read as Windows-1252.",)


def test_a_nameless_count_of_rows_is_left_out_unless_it_is_wanted(tmp_path: Path) -> None:
    text = ",key,x\n0,7,1.5\n1,8,2.5\n"
    table = read_text(tmp_path, text, id="key")
    assert table.columns == ("x",) and table.notes == (
        "The first column has no name and numbers the rows; it was left out.",
    )
    assert read_text(tmp_path, text, id="Unnamed: 0").columns == ("key", "x")
    shuffled = text.replace("1,8", "5,8")
    assert read_text(tmp_path, shuffled, id="key").columns == ("x",)
    assert read_text(tmp_path, shuffled.replace("5,8", "0,8"), id="key").columns == ("Unnamed: 0", "x")


def test_names_and_ids_are_tidied(tmp_path: Path) -> None:
    table = read_text(tmp_path, "id , x\n1.0,2\n2.0,3\n", id="id")
    assert table.columns == ("x",) and table.ids.tolist() == [1, 2]
    assert read_text(tmp_path, "id,x\n1.0,2\n2.5,3\n", id="id").ids.tolist() == ["1.0", "2.5"]


def test_tables_of_other_libraries_are_frames() -> None:
    frame = pd.DataFrame({"x": [1.5, 2.5, 4.0], "town": ["a", "b", "a"]})
    table = table_from_arrays(pa.Table.from_pandas(frame))
    assert table.columns == ("x", "town") and table.levels == {"town": ("a", "b")}
    np.testing.assert_array_equal(table_from_arrays(sp.dok_matrix(np.eye(3))).features.toarray(), np.eye(3))


@pytest.mark.parametrize(
    "word", ["k.A.", "(blank)", "<NA>", "#DIV/0!", "#VALUE!", "\\N", "NaT", "n/d", "don't know", "[null]"]
)
def test_other_programs_words_for_nothing_are_empty_cells_among_numbers(word):
    table = table_from_arrays(pd.DataFrame({"x": ["1.5", word, "3", "4", word]}), name="t")
    np.testing.assert_array_equal(table.features[:, 0], [1.5, np.nan, 3, 4, np.nan])
    assert table.levels == {} and f"{word!r} (2)" in table.notes[0]


def test_lengths_of_time_in_files_are_days():
    lengths = pd.to_timedelta([-36, 0.5, 100, None], unit="h")
    table = table_from_arrays(pd.DataFrame({"x": lengths.astype(str)}), name="t")
    np.testing.assert_allclose(table.features[:, 0], [-1.5, 0.5 / 24, 100 / 24, np.nan])
    assert "lengths of time: they count as days" in table.notes[0]


@pytest.mark.parametrize("separator", ["\t", ";"])
@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["0.1%", "12.5%", "100.0%"], [0.1, 12.5, 100]),
        (["$1,049.00", "$7.50", "$12,000,000.00"], [1049, 7.5, 12e6]),
        (["(3.25)", "4.00", "(0.50)"], [-3.25, 4, -0.5]),
        (["1,304,000", "12,000", "7,000,000"], [1304000, 12000, 7e6]),
        (["-6,42e-05", "1,5", "2,25E+3"], [-6.42e-5, 1.5, 2250]),
        (["1.304,50", "12,5", "7,25"], [1304.5, 12.5, 7.25]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_cells_decide_what_a_comma_is_where_columns_are_not_separated_by_it(tmp_path, separator, cells, numbers):
    file = tmp_path / "t.csv"
    file.write_text(f"id{separator}x\n" + "".join(f"{i}{separator}{cell}\n" for i, cell in enumerate(cells)))
    table = read_table(file, "id")
    np.testing.assert_allclose(table.features[:, 0], numbers)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_one_later_row_is_read_as_the_training_rows_were(tmp_path, ending):
    """426,228 alone may be either, and in a file with tabs a comma may be a decimal point."""
    grouped = table_from_arrays(pd.DataFrame({"x": ["1,304,000", "12,000", "426,228"]}), name="t")
    decimal = table_from_arrays(pd.DataFrame({"x": ["1,5", "12,25", "426,228"]}), name="t")
    file = tmp_path / f"later.{ending}"
    pd.DataFrame({"id": [1], "x": ["426,228"]}).to_csv(file, index=False, sep="\t" if ending == "tsv" else ",")
    for before, number in ((grouped, 426228.0), (decimal, 426.228)):
        assert before.features[2, 0] == number
        assert read_table(file, "id", columns=["x"], forms=before.forms).features[0, 0] == number


def test_lengths_of_time_are_the_same_whatever_they_come_in():
    lengths = pd.to_timedelta([3, 40, 5], unit="D")
    frame = pd.DataFrame({"x": lengths})
    trained = fit_preparation(*_parts(table_from_arrays(frame, name="t")))
    later = table_from_arrays(frame.astype(str), name="later", forms=trained.forms)
    np.testing.assert_array_equal(trained.recoded(later)[:, 0], [3, 40, 5])


def _parts(table):
    return table.features, table.columns, Preparation(), table.levels, table.forms
