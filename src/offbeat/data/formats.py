"""File formats, compressed or not, as they come: a data frame, or arrays. Checking is the table's business."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from offbeat.errors import BadData
from offbeat.names import did_you_mean, nearest

if TYPE_CHECKING:
    import pandas as pd


def _zipped(file: Path, mode: str) -> IO[bytes]:
    """The one file of an archive."""
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise BadData(f"{file} could not be unpacked: {error}.") from error
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    if len(names) != 1:
        raise BadData(f"{file} holds {len(names)} files, and one table was expected. Unpack it and name the file.")
    return archive.open(names[0])


COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": _zipped}
FRAMES = (".csv", ".tsv", ".parquet")
LIBSVM = (".svm", ".libsvm", ".txt")
ARRAYS = (*LIBSVM, ".npz", "-ubyte")
KNOWN = (*FRAMES, *ARRAYS)
SEPARATORS = ",;\t|"
REMARK = re.compile(r"\ufeff?(#|sep=.\s*$)")
WORKBOOK = "a workbook of a spreadsheet program", "Save the sheet as CSV (or Parquet) there."
PAGE = "a web page, or XML", "Save the table as CSV or Parquet."
JSON = "JSON", "Save the table as CSV or Parquet: pandas.read_json(...).to_csv(...), say."
BEGINNINGS = {
    b"PK\x03\x04": WORKBOOK,
    b"\xd0\xcf\x11\xe0": WORKBOOK,
    b"PAR1": ("Parquet", "Give it a name that ends in .parquet."),
    b"ARROW1": ("Feather", "Save it as CSV or Parquet."),
    b"\x1f\x8b": ("gzip", "Give it a name that ends in .csv.gz, or unpack it."),
    b"BZh": ("bzip2", "Give it a name that ends in .csv.bz2, or unpack it."),
    b"\xfd7zXZ": ("xz", "Give it a name that ends in .csv.xz, or unpack it."),
    b"SQLite": ("an SQLite database", 'Name a table of it: table = "sqlite:///FILE?table=NAME".'),
    b"<!": PAGE,
    b"<?": PAGE,
    b"<html": PAGE,
    b"<table": PAGE,
    b'{"': JSON,
    b"[{": JSON,
    b"[[": JSON,
}
"""How files begin that are no tables of separated values, what they are, and what to do."""
WESTERN = "cp1252"
"""What Windows writes in the west: tried where a file is not UTF-8."""
SNIFFED = 65_536
"""Characters of a file by which its separator is found."""


@dataclass(frozen=True)
class Arrays:
    features: Any
    ids: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    columns: Sequence[str] | None = None


def kind_of(file: Path) -> str:
    """The format's ending, without the compression's; a wrong one is refused."""
    if file.is_dir():
        raise BadData(f"{file} is a folder; a file of data was expected.")
    name = file.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    for kind in KNOWN:
        if name.endswith(kind):
            return kind
    raise BadData(
        f"{file}: unknown kind of file. Expected a name ending in {', '.join(KNOWN)}, each also with "
        f"{', '.join(COMPRESSED)}. Save other tables as CSV or Parquet."
    )


def open_bytes(file: Path) -> IO[bytes]:
    """The file's bytes, decompressed; a missing file is refused with the nearest names beside it."""
    if not file.is_file():
        raise BadData(_missing(file))
    found: IO[bytes] = COMPRESSED.get(file.suffix.lower(), open)(file, "rb")
    return found


def _missing(file: Path) -> str:
    if file.is_dir():
        return f"{file} is a folder; a file of data was expected."
    if not file.parent.is_dir():
        return f"There is no file {file}, nor a folder {file.parent}."
    beside = sorted(other.name for other in file.parent.iterdir() if other.is_file())
    close = nearest(file.name, beside)
    return f"There is no file {file}. " + (
        f"Near it: {', '.join(close)}." if close else did_you_mean(file.name, beside)
    )


def read_all(file: Path) -> bytes:
    try:
        with open_bytes(file) as stream:
            return stream.read()
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise BadData(f"{file} could not be read or unpacked: {error}.") from error


# -- data frames ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """`decimal_comma`: whether 1,5 can be a number, as in files whose columns are not separated by commas; `notes`:
    what was found out about the file."""

    frame: "pd.DataFrame"
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()


def read_frame(file: Path) -> Frame | None:
    """A CSV, TSV or Parquet file; None for the other kinds. Cells of a CSV that look like numbers become numbers only
    later, so that an id "007" keeps its zeros."""
    kind = kind_of(file)
    if kind not in (*FRAMES, ".txt"):
        return None
    content = read_all(file)
    if kind == ".txt" and _is_libsvm(content):
        return None
    if kind == ".parquet":
        return Frame(_parquet(io.BytesIO(content), file))
    _refuse_others(content, file)
    encoding = "utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    start = content[:SNIFFED].decode(encoding, errors="replace")
    skipped = _before_header(start.splitlines())
    separator = _separator(start, skipped, "\t" if kind == ".tsv" else ",", file)
    notes: tuple[str, ...] = ()
    if skipped:
        notes = (f"{file.name}: the first {skipped} line(s) stand before the header and were left out.",)
    try:
        return Frame(_csv(io.BytesIO(content), file, separator, encoding, skipped), separator != ",", notes)
    except UnicodeDecodeError:
        frame = _csv(io.BytesIO(content), file, separator, WESTERN, skipped)
        return Frame(frame, separator != ",", (*notes, f"{file.name} is not UTF-8 and was read as Windows-1252."))


def _refuse_others(content: bytes, file: Path) -> None:
    """What is no table of separated values, by its first bytes."""
    head = content[:64].lstrip(codecs.BOM_UTF8 + b" \r\n\t")
    for beginning, (what, advice) in BEGINNINGS.items():
        if head.startswith(beginning):
            raise BadData(f"{file} is no table of separated values: it begins like {what}. {advice}")
    if b"\0" in content and content[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise BadData(
            f"{file} holds bytes of 0, which no text has: it is another kind of file, or was damaged, or is UTF-16 "
            "without a mark at its beginning. Save the table anew, as CSV in UTF-8."
        )


def _before_header(lines: list[str]) -> int:
    """How many lines come before the header: `sep=;`, as spreadsheets write it, and remarks, which begin with #. A
    header may do so too: it has as many marks as the line behind it."""
    place = next((at for at, line in enumerate(lines) if line.strip() and not REMARK.match(line)), 0)
    marks = [sum(map(line.count, SEPARATORS)) for line in lines[max(place - 1, 0) : place + 1]]
    if place and lines[place - 1].startswith("#") and marks[0] >= marks[1]:
        place -= 1
    return place if any(line.strip() for line in lines[:place]) else 0


def _csv(content: io.BytesIO, file: Path, separator: str, encoding: str, skipped: int) -> "pd.DataFrame":
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header would be cut
            frame = pd.read_csv(
                content,
                sep=separator,
                dtype=str,
                skipinitialspace=True,
                index_col=False,
                encoding=encoding,
                skiprows=skipped,
            )
            frame = frame.set_axis(frame.columns.str.strip(), axis=1)
            empty = [name for name in frame.columns[1:] if name.startswith("Unnamed: ") and frame[name].isna().all()]
            return frame.drop(columns=empty)  # of a separator at the end of each line
    except UnicodeDecodeError as error:
        if encoding != WESTERN:
            raise
        raise BadData(f"{file} is not written in UTF-8. Save it anew in that encoding.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        told = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ").rstrip(".")
        raise BadData(
            f"{file} is not a table of separated values: {told}. Every line needs as many fields as the header, and a "
            "quote that is opened is closed."
        ) from error


def _separator(start: str, skipped: int, usual: str, file: Path) -> str:
    """The one under which the first lines have the most columns, as many in each; the usual one where none has two."""
    lines = start.splitlines()[skipped:]
    lines = lines[:-1] if len(start) >= SNIFFED and len(lines) > 1 else lines  # the last one may be cut
    if not lines or not lines[0].strip():
        raise BadData(f"{file} is empty, or its first line is; a header line with column names was expected.")
    marks = [usual, *(mark for mark in SEPARATORS if mark != usual)]
    try:
        widths = {mark: [len(row) for row in csv.reader(lines[:50], delimiter=mark) if row] for mark in marks}
    except csv.Error as error:
        raise BadData(f"{file} is not a table of separated values: {error}.") from error
    even = [mark for mark in marks if widths[mark][0] > 1 and len(set(widths[mark])) == 1]
    chosen = max(even, key=lambda mark: widths[mark][0]) if even else max(marks, key=lambda mark: widths[mark][0])
    names = [name.strip() for name in next(csv.reader(lines[:1], delimiter=chosen))]
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise BadData(f"{file}: the header names column {twice[0]!r} {names.count(twice[0])} times; names must differ.")
    return chosen


def _parquet(content: io.BytesIO, file: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        frame = pd.read_parquet(content)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise BadData(f"{file} is not a Parquet file: {' '.join(str(error).split())}") from error
    named = [name for name in frame.index.names if name is not None]
    return frame.reset_index(names=named) if named else frame


# -- arrays --------------------------------------------------------------------------------------------------------


def read_arrays(file: Path, id: str | None, label: str | None) -> Arrays:
    kind = kind_of(file)
    if kind in LIBSVM:
        return _libsvm(file, id, label)
    if kind == ".npz":
        return _npz(file, id, label)
    return _idx_table(file, id, label)


def _libsvm(file: Path, id: str | None, label: str | None) -> Arrays:
    from sklearn.datasets import load_svmlight_file

    if id is not None:
        raise BadData(
            f"{file} is a LIBSVM file, which has no id column {id!r}. Its rows are numbered from 0; leave id out."
        )
    content = read_all(file)
    try:
        features, labels = load_svmlight_file(io.BytesIO(content), dtype=np.float64)
    except (ValueError, OverflowError) as error:
        raise BadData(_first_bad_line(content, file, str(error))) from error
    return Arrays(features, labels=labels if label is not None else None)


def _first_bad_line(content: bytes, file: Path, otherwise: str) -> str:
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        tokens = line.split("#", 1)[0].split()
        wrong = next((token for i, token in enumerate(tokens) if not _is_libsvm_token(token, first=i == 0)), None)
        if wrong is not None:
            return f"{file}, row {number}: expected 'label index:value ...', came {wrong!r}."
    return f"{file} is not a LIBSVM file: {otherwise}."


def _is_libsvm(content: bytes) -> bool:
    """By the first line that is no remark."""
    lines = (line.split("#", 1)[0].split() for line in content[:SNIFFED].decode(errors="replace").splitlines())
    tokens = next((line for line in lines if line), [])
    return all(_is_libsvm_token(token, first=i == 0) for i, token in enumerate(tokens))


def _is_libsvm_token(token: str, first: bool) -> bool:
    index, colon, value = token.rpartition(":")
    try:
        float(value)
        return first if not colon else index == "qid" or int(index) >= 0
    except ValueError:
        return False


def _npz(file: Path, id: str | None, label: str | None) -> Arrays:
    content = io.BytesIO(read_all(file))
    try:
        with np.load(content, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise BadData(f"{file} is not an npz archive of plain arrays: {error}.") from error
    for what, wanted in (("id", id), ("label", label)):
        if wanted is not None and wanted not in arrays:
            raise BadData(f"{file} has no {what} array {wanted!r}. {did_you_mean(wanted, arrays)}")
    columns = arrays.get("columns")
    return Arrays(
        features=_npz_features(arrays, file),
        ids=arrays.get(id or "ids"),
        labels=None if label is None else arrays[label],
        columns=None if columns is None else tuple(str(column) for column in columns),
    )


def _npz_features(arrays: dict[str, NDArray[Any]], file: Path) -> Any:
    if {"indptr", "indices", "data", "shape"} <= set(arrays):
        kind = arrays["format"].item() if "format" in arrays else b"csr"
        make = {b"csr": sp.csr_matrix, b"csc": sp.csc_matrix}.get(
            kind if isinstance(kind, bytes) else str(kind).encode()
        )
        if make is None:
            raise BadData(f"{file} holds a sparse matrix in {kind!r} form; csr or csc was expected.")
        return make((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"]))
    if "X" in arrays:
        return arrays["X"]
    raise BadData(f"{file} has neither an array 'X' nor a sparse matrix. {did_you_mean('X', arrays)}")


def read_idx(file: Path) -> NDArray[np.uint8]:
    """An idx file of bytes (MNIST's format), in its own shape."""
    content = read_all(file)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise BadData(f"{file} is not an idx file of bytes.")
    sizes = np.frombuffer(content, dtype=">u4", count=content[3], offset=4).astype(np.int64)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * content[3])
    if values.size != np.prod(sizes):
        raise BadData(f"{file} promises {'x'.join(map(str, sizes))} bytes but holds {values.size}.")
    return values.reshape(sizes)


def _idx_table(file: Path, id: str | None, label: str | None) -> Arrays:
    if id is not None:
        raise BadData(
            f"{file} is an idx file, which has no id column {id!r}. Its rows are numbered from 0; leave id out."
        )
    images = read_idx(file)
    labels = None if label is None else read_idx(file.parent / label).astype(np.float64)
    return Arrays(images.reshape(images.shape[0], -1), labels=labels)
