"""The columns of a data frame as numbers: numbers as they are, text as codes, dates as days.

What a column holds is found out from its cells. Among numbers, dates and times a cell that says that nothing is known
(`?`, `unknown`, see NOTHING_KNOWN) is a missing one, with a note. A column of numbers with a few other cells that are
none is refused rather than taken for text: such cells are mistakes more often than not.
"""

import re
from datetime import date, time
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offbeat.data.holdout import id_text
from offbeat.data.matrix import Floats
from offbeat.errors import BadData

if TYPE_CHECKING:
    import pandas as pd

LOOKED_AT = 200
"""Cells of a text column that are looked at before all of them are: most columns are of one kind throughout."""
NOTHING_KNOWN = re.compile(
    r"[?*.–—-]*|[(<\[]?("
    r"n[./]?a\.?|n[./]?d\.?|k\.? ?a\.?|nan|nat|nil|none|null|\\n|blank|empty|missing|unk(nown)?|undefined|unspecified"
    r"|declined|no (data|answer|response)|not (available|known|applicable|given|recorded|reported|measured|done)"
    r"|don'?t know|unbekannt|keine angabe|inconnu"
    r")[)>\]]?|#(n/?a|value!|div/0!|ref!|null!|num!|name\?)",
    re.IGNORECASE,
)
"""What people write where they know nothing."""
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
ZONE_NAME = r"\s*(UTC|GMT)$"
CLOCK = re.compile(
    r"(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(:(?P<second>[0-5]\d(\.\d+)?))?"
    r"( ?(?P<half>[AP]\.?M\.?))?( ?(Z|[+-]\d{2}:?\d{2}))?",
    re.IGNORECASE,
)
DAYS = "day"
LENGTH = re.compile(
    r"(?P<minus>-)?(?P<days>\d+) days?,? ?[+]?(?P<hours>\d{1,2}):(?P<minutes>\d{2})(:(?P<seconds>\d{2}(\.\d+)?))?"
)
"""A length of time as programs write it: 1 days 02:03:04."""
CLEAR_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y",
    "%B %d, %Y", "%Y-%m", "%Y/%m", "%m/%Y", "%m.%Y", "%b %Y", "%b-%Y", "%B %Y",
)  # fmt: skip
"""Spellings of days whose day and month cannot be mixed up."""
EITHER_DAYS = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
SWAPPED = str.maketrans("dm", "md")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
DIRECTIVES = {
    "%d": r"\d{1,2}", "%m": r"\d{1,2}", "%y": r"\d{2}", "%Y": r"\d{4}", "%b": "[A-Za-z]{3}", "%B": "[A-Za-z]{3,9}",
    "%H": r"\d{1,2}", "%I": r"\d{1,2}", "%M": r"\d{2}", "%S": r"\d{2}", "%p": "[AaPp][Mm]", ".": r"\.",
}  # fmt: skip
DATE_SHAPES = {
    day + clock: re.compile(re.sub(r"%[A-Za-z]|\.", lambda found: DIRECTIVES[found[0]], day + clock))
    for day in (*CLEAR_DAYS, *EITHER_DAYS)
    for clock in CLOCKS
}
DAY_OR_MONTH = re.compile(r"(\d{1,2})([/-])(\d{1,2})\2(\d{4}|\d{2})( \d{1,2}:\d{2}.*)?")
DATE, DAY_FIRST, MONTH_FIRST = "date", "date, the day first", "date, the month first"
SIGNS = "€$£¥₹₽₩₺₪"
SHAPE = (
    r"\s*(?P<open>\()?\s*(?P<minus>[-+−])?\s*(?P<sign>[{signs}]|[A-Z]{{3}}\s)?\s*(?P<inner>[-+−])?\s*"
    r"(?P<whole>\d{{1,3}}([{group}'’\s]\d{{3}})+|\d+)(?P<rest>\{point}\d+)?(?P<power>[eE][+-]?\d+)?(?(rest)(?P<behind>[-−])?)\s*"
    r"(?(sign)|(?P<after>[%‰{signs}]|[A-Za-zµ°][\w/°]{{0,11}})?)\s*(?(open)\))\s*"
)
"""A number as people write it: -1,234.50 €, CHF 12'000, (300.00) or 300.00- for one below zero, 34 years."""
POINT_SHAPE, COMMA_SHAPE = (re.compile(SHAPE.format(signs=SIGNS, group=a, point=b)) for a, b in (",.", ".,"))
COMMA_NUMBER = re.compile(rf"[{SIGNS}]?\s*[+-]?\d+(,\d+)+\s*[%{SIGNS}]?")
MONEY = {
    *SIGNS,
    "AUD",
    "BRL",
    "CAD",
    "CHF",
    "CNY",
    "CZK",
    "DKK",
    "EUR",
    "GBP",
    "HUF",
    "INR",
    "JPY",
    "NOK",
    "PLN",
    "SEK",
    "USD",
}
THOUSANDS_LEAST = 10
CODE = re.compile(r"\d{2,}")
DAY_NS = 86_400_000_000_000


class Cells(NamedTuple):
    """One column. `texts`: those behind the codes, where it holds categories. `form`: dates, or the unit beside the
    numbers, behind the mark that is their decimal point if there were commas. `notes`: what a user should know."""

    values: Floats
    texts: tuple[str, ...] | None = None
    form: str = ""
    notes: tuple[str, ...] = ()


def cells_of(
    series: "pd.Series[Any]", where: str, *, as_text: bool = False, decimal_comma: bool = False, form: str | None = None
) -> Cells:
    """`where` names file and column; `decimal_comma`: whether 1,5 can be a number; `form`: that of earlier rows."""
    import pandas as pd
    from pandas.api import types

    kind = series.dtype
    if as_text and types.is_object_dtype(kind):  # a column that is left out may hold lists, say
        return coded(series.map(id_text, na_action="ignore"), where)
    if as_text or types.is_bool_dtype(kind) or isinstance(kind, types.CategoricalDtype):
        return coded(series, where)
    if types.is_complex_dtype(kind):
        raise BadData(f"Complex data not supported: {where} holds {kind}. Bring real numbers.")
    if types.is_numeric_dtype(kind):
        return Cells(series.to_numpy(np.float64, na_value=np.nan))
    if isinstance(kind, pd.PeriodDtype):
        return _days(series.dt.to_timestamp())
    if types.is_datetime64_any_dtype(kind):
        return _days(series)
    if types.is_timedelta64_dtype(kind):
        return Cells(series.dt.total_seconds().to_numpy(np.float64) / 86_400, form=DAYS)
    if types.is_string_dtype(kind) or types.is_object_dtype(kind):
        return _of_text(series, where, decimal_comma, form)
    raise BadData(f"{where} holds {kind}, not numbers, text or dates. Make numbers of it, or leave it out.")


def _of_text(series: "pd.Series[Any]", where: str, decimal_comma: bool, form: str | None) -> Cells:
    sample = _sample(series)
    if form is not None and not sample:  # later rows that know nothing of a column
        return Cells(np.full(len(series), np.nan), form=form)
    if form is None and _are_codes(sample):
        return coded(series, where)
    usual = decimal_comma or (form is None and _commas_are_points(series, sample))
    comma = _is_decimal_comma(sample, {",": True, ".": False}.get((form or "")[:1], usual))
    mark = ("," if comma else ".") if any("," in value for value in sample if isinstance(value, str)) else ""
    series, unit = _undressed(series, sample, comma, known=form is not None)
    sample = _sample(series)
    _refuse_commas(sample, where, known=form is not None)
    if any(isinstance(value, bool) for value in sample):
        return coded(series, where)
    if sample and all(isinstance(value, date) for value in sample):
        return _own_dates(series, where)
    numbers = _numbers(series, sample, where)
    if numbers is not None:
        said = f"Column {series.name!r}: its numbers were read without the {unit!r} beside them."
        return numbers._replace(form=mark + unit, notes=(said, *numbers.notes) if unit else numbers.notes)
    return _moments(series, sample, where, form) or coded(series, where, fold=True)


def _are_codes(sample: list[Any]) -> bool:
    """Digits of one length, zeros in front: 0041 is no number, and 7 is another thing than 007."""
    texts = [value.strip() for value in sample if isinstance(value, str)]
    return (
        len({len(text) for text in texts}) == 1
        and any(text[0] == "0" for text in texts)
        and all(CODE.fullmatch(text) for text in texts)
    )


def _commas_are_points(series: "pd.Series[Any]", sample: list[Any]) -> bool:
    """Whether 12,5 must mean twelve and a half: some comma has not three digits behind it, or more than three or other
    marks before, and all cells can be read so."""
    if not sample or not all(_is_comma_number(value) or is_number(value) for value in sample):
        return False
    texts = [value for value in series.dropna().unique() if isinstance(value, str) and "," in value]
    found = [match for text in texts if (match := COMMA_SHAPE.fullmatch(text)) and match["rest"]]
    certain = any(len(match["rest"]) != 4 or len(match["whole"]) > 3 for match in found)
    pointed = any(isinstance(value, str) and is_number(value) and "." in value for value in sample)
    return certain and len(found) == len(texts) and not pointed


def _is_decimal_comma(sample: list[Any], usual: bool) -> bool:
    """What a comma is: that of the cells which can be read in one way alone, such as 0.1 % and $1,049.00; where there
    is none, or some of both, what is usual."""
    texts = [value for value in sample if isinstance(value, str) and not is_number(value)]
    read = [(POINT_SHAPE.fullmatch(text), COMMA_SHAPE.fullmatch(text)) for text in texts]
    points, commas = any(a and not b for a, b in read), any(b and not a for a, b in read)
    return usual if points == commas else commas and usual


def _are_thousands(found: list[re.Match[str]], sample: list[Any], unit: str) -> bool:
    """Whether 1,234 must mean a thousand: money has no three decimals; and numbers with three would all have them."""
    short = [value for value in sample if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,3}", value.strip())]
    return unit in MONEY or (len(found) >= THOUSANDS_LEAST and bool(short) and len(short) + len(found) == len(sample))


def _sample(series: "pd.Series[Any]") -> list[Any]:
    """The first cells that say something."""
    return list(islice((value for value in series.dropna() if not says_nothing(value)), LOOKED_AT))


def says_nothing(value: Any) -> bool:
    return isinstance(value, str) and NOTHING_KNOWN.fullmatch(value.strip()) is not None


def _numbers(series: "pd.Series[Any]", sample: list[Any], where: str) -> Cells | None:
    """None where the column holds something else."""
    import pandas as pd

    if not any(is_number(value) for value in sample) and series.notna().any():
        return None
    numbers = pd.to_numeric(series, errors="coerce")
    wrong, notes = _unread(series, numbers.isna())
    if not wrong.any():
        return Cells(numbers.to_numpy(np.float64, na_value=np.nan), notes=notes)
    _refuse_few(series, wrong, where)
    return None


def _unread(series: "pd.Series[Any]", nothing: "pd.Series[bool]") -> tuple[Any, tuple[str, ...]]:
    """Cells of which nothing was made although they say something; and a note on those that say nothing in words."""
    wrong = (nothing & series.notna()).to_numpy()
    if not wrong.any():
        return wrong, ()
    counts = {value: n for value, n in series[wrong].value_counts().items() if says_nothing(value)}
    if not counts:
        return wrong, ()
    words = ", ".join(f"{value!r} ({n:,})" for value, n in list(counts.items())[:5]) + (
        ", ..." if len(counts) > 5 else ""
    )
    note = (
        f"Column {series.name!r}: cells that say in words that nothing is known count as missing: {words}. If they are "
        f'categories, write prepare = {{ columns = {{ "{series.name}" = "category" }} }}.'
    )
    return wrong & ~series.isin(list(counts)).to_numpy(), (note,)


def _moments(series: "pd.Series[Any]", sample: list[Any], where: str, form: str | None) -> Cells | None:
    """Dates and times of day; None where the column holds something else."""
    import pandas as pd

    if sample and all(isinstance(value, time) or (isinstance(value, str) and _clock(value)) for value in sample):
        return _hours(series)
    if sample and all(isinstance(value, str) and LENGTH.fullmatch(value.strip()) for value in sample):
        return _lengths(series)
    texts = [value.strip() for value in sample if isinstance(value, str)]
    spelled = [form for form, shape in DATE_SHAPES.items() if any(map(shape.fullmatch, texts))]
    shapes = [ISO_DATE, *(DATE_SHAPES[spelling] for spelling in spelled)]
    if not texts or len(texts) < len(sample) or not all(any(s.fullmatch(text) for s in shapes) for text in texts):
        return None
    either = any(map(DAY_OR_MONTH.fullmatch, texts))
    form = _which_first(series, where, form) if either else DATE
    found = _iso_dates(series, sample)
    for spelling in spelled:
        if form == MONTH_FIRST and spelling.startswith(EITHER_DAYS):
            spelling = spelling.translate(SWAPPED)
        rest = series[found.isna()].str.strip()
        found = found.fillna(pd.to_datetime(rest, errors="coerce", format=spelling, utc=True))
    wrong, notes = _unread(series, found.isna())
    return None if wrong.any() else _days(found, notes, form)


def _which_first(series: "pd.Series[Any]", where: str, form: str | None) -> str:
    """Whether the day stands before the month: by the form of earlier rows, or by a day above 12 in some row. Where a
    cell is no date at all either answer will do."""
    if form in (DAY_FIRST, MONTH_FIRST):
        return form
    cells = [found for value in series.dropna().unique() if (found := DAY_OR_MONTH.fullmatch(str(value).strip()))]
    pairs = [(int(found[1]), int(found[3])) for found in cells]
    first, second = (max(column) for column in zip(*pairs, strict=True))
    if (first > 12) != (second > 12) or any(min(pair) < 1 or min(pair) > 12 for pair in pairs):
        return DAY_FIRST if first > 12 else MONTH_FIRST
    why = "some with the day first and some with the month" if first > 12 else "and no day among them is above 12"
    raise BadData(
        f"{where} holds dates such as {cells[0][0]!r}, {why}: nobody can tell the day from the month. Write them as "
        f'2024-12-31; or treat the column otherwise: prepare = {{ columns = {{ "{series.name}" = "leave-out" }} }}, or '
        '"category".'
    )


def _clock(value: str) -> re.Match[str] | None:
    return CLOCK.fullmatch(value.strip())


def _hours(series: "pd.Series[Any]") -> Cells | None:
    """Times of day as hours since midnight, as the clock showed them; None where some cell is none."""
    import pandas as pd

    read = {value: _hour(value) for value in series.dropna().unique()}
    hours = pd.to_numeric(series.map(read), errors="coerce")
    wrong, notes = _unread(series, hours.isna())
    if wrong.any():
        return None
    note = f"Column {series.name!r} holds times of day: they count as hours since midnight, zones left aside."
    return Cells(hours.to_numpy(np.float64, na_value=np.nan), notes=(note, *notes))


def _lengths(series: "pd.Series[Any]") -> Cells | None:
    """Lengths of time as days; None where some cell is none."""
    import pandas as pd

    days = pd.to_numeric(series.map({value: _length(str(value)) for value in series.dropna().unique()}))
    wrong, notes = _unread(series, days.isna())
    if wrong.any():
        return None
    note = f"Column {series.name!r} holds lengths of time: they count as days."
    return Cells(days.to_numpy(np.float64, na_value=np.nan), form=DAYS, notes=(note, *notes))


def _length(text: str) -> float:
    found = LENGTH.fullmatch(text.strip())
    if found is None:
        return float("nan")
    hours = float(found["hours"]) + float(found["minutes"]) / 60 + float(found["seconds"] or 0) / 3600
    return (-1 if found["minus"] else 1) * float(found["days"]) + hours / 24


def _hour(value: Any) -> float:
    if isinstance(value, time):
        return value.hour + value.minute / 60 + (value.second + value.microsecond / 1e6) / 3600
    found = _clock(str(value))
    if found is None:
        return float("nan")
    hour = float(found["hour"])
    if found["half"]:
        hour = hour % 12 + 12 * (found["half"][0] in "pP")
    return hour + float(found["minute"]) / 60 + float(found["second"] or 0) / 3600


def _iso_dates(series: "pd.Series[Any]", sample: list[Any]) -> "pd.Series[Any]":
    import pandas as pd

    if any(re.search(ZONE_NAME, value) for value in sample):
        series = series.str.replace(ZONE_NAME, "Z", regex=True)
    return pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)


def _undressed(series: "pd.Series[Any]", sample: list[Any], comma: bool, known: bool) -> "tuple[pd.Series[Any], str]":
    """The column with its numbers less units, signs of money and marks between thousands, and with decimal points; and
    the unit. As it was where it holds something else, units of several kinds, or plain numbers already. What may be
    either stays as it is, unless it is `known` how numbers are spelled."""
    shape, group = (COMMA_SHAPE, ".") if comma else (POINT_SHAPE, ",")
    dressed = [value for value in sample if not is_number(value) or (comma and "," in str(value))]
    found = [match for value in dressed if isinstance(value, str) and (match := shape.fullmatch(value))]
    units = {unit for match in found if (unit := _unit(match))}
    groups = max((match["whole"].count(group) for match in found), default=0)
    if not found or 2 * (len(dressed) - len(found)) >= len(sample) or len(units) > 1:
        return series, ""
    worded = sum((match["after"] or "0")[0].isalpha() for match in found)
    if worded and 2 * worded <= len(sample) and not known:  # 12, 15, 7x: a slip of the pen, and no unit
        return series, ""
    unit = next(iter(units), "")
    pointed = any(match["rest"] for match in found)
    if groups == 1 and not (known or pointed or _are_thousands(found, sample, unit)):
        return series, ""
    cells = [value for value in series.dropna().unique() if isinstance(value, str)]
    known_units = {*units, ""}
    bare = {cell: _bare(match) for cell in cells if (match := shape.fullmatch(cell)) and _unit(match) in known_units}
    plain = series.map(bare)
    return plain.where(plain.notna(), series), unit


def _unit(match: re.Match[str]) -> str:
    unit = (match["sign"] or match["after"] or "").strip()
    return unit.removesuffix("s") if len(unit) > 3 else unit


def _bare(match: re.Match[str]) -> str:
    minus = "-" if match["open"] or match["behind"] or (match["minus"] or match["inner"] or "+") in "-−" else ""
    rest = f".{match['rest'][1:]}" if match["rest"] else ""
    return minus + re.sub(r"\D", "", match["whole"]) + rest + (match["power"] or "")


def _own_dates(series: "pd.Series[Any]", where: str) -> Cells:
    """Python's own dates."""
    import pandas as pd

    found = pd.to_datetime(series, errors="coerce", utc=True)
    wrong, notes = _unread(series, found.isna())
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadData(
            f"{where}, row {row + 1}: expected a date, came {str(series.iloc[row])!r} ({int(wrong.sum())} such cells). "
            "Correct these cells or leave them empty."
        )
    return _days(found, notes)


def is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_comma_number(value: Any) -> bool:
    if not isinstance(value, str) or "," not in value:
        return False
    return any(shape.fullmatch(value.strip()) for shape in (COMMA_NUMBER, POINT_SHAPE, COMMA_SHAPE))


def _refuse_few(series: "pd.Series[Any]", wrong: Any, where: str) -> None:
    """Cells that are no numbers, where most are."""
    known = int(series.notna().sum())
    if 2 * np.count_nonzero(wrong) > known:
        return
    row = int(np.argmax(wrong))
    others = [repr(str(value)) for value in series[wrong].unique()[:5] if value != series.iloc[row]]
    more = f"; others are {', '.join(others)}" if others else ""
    raise BadData(
        f"{where}, row {row + 1}: expected a number, came {str(series.iloc[row])!r} ({int(wrong.sum())} such cells, "
        f"and {known - int(wrong.sum())} numbers{more}). Correct these cells or leave them empty; if the column holds "
        f'categories, say so: prepare = {{ columns = {{ "{series.name}" = "category" }} }}; or "leave-out".'
    )


def _refuse_commas(sample: list[Any], where: str, *, known: bool) -> None:
    """`known`: the training rows told how its numbers are spelled, and it was otherwise."""
    commas = [value for value in sample if _is_comma_number(value)]
    if not commas or not all(_is_comma_number(value) or is_number(value) for value in sample):
        return
    if known:
        raise BadData(
            f"{where} holds numbers with commas, such as {commas[0]!r}; in the training rows its numbers had decimal "
            "points. Write them as there."
        )
    raise BadData(
        f"{where} holds numbers with commas, such as {commas[0]!r}: the comma may be a decimal point or may group "
        "thousands, and no cell tells. Save the file with points and without groups, or with semicolons between "
        "the columns."
    )


def coded(series: "pd.Series[Any]", where: str, *, fold: bool = False) -> Cells:
    """Codes of the texts in their alphabetical order; nan where there is none. `fold`: texts that differ by capitals
    and spaces alone are one, spelled as most rows have it."""
    import pandas as pd

    try:
        positions, distinct = pd.factorize(series)
        spelled = [id_text(value) for value in distinct]
    except (TypeError, UnicodeDecodeError):
        odd = next(value for value in series if isinstance(value, bytes) or getattr(value, "__hash__", None) is None)
        raise BadData(
            f"{where} holds {type(odd).__name__}, such as {str(odd)[:40]!r}, and every cell is to be one number, text "
            "or date. Make columns of single values of it, or leave the column out: prepare = { columns = { "
            f'"{series.name}" = "leave-out" }} }}.'
        ) from None
    notes: tuple[str, ...] = ()
    if fold and len({folded(text) for text in spelled}) < len(set(spelled)):
        spelled, notes = _as_most(spelled, np.bincount(positions[positions >= 0], minlength=len(spelled)), series.name)
    texts = sorted(set(spelled) - {""})
    code = {text: float(i) for i, text in enumerate(texts)}
    table = np.array([*(code.get(text, np.nan) for text in spelled), np.nan])
    return Cells(table[positions], tuple(texts), notes=notes)


def folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _as_most(spelled: list[str], counts: Any, column: Any) -> tuple[list[str], tuple[str, ...]]:
    """Each text as most rows spell it, and a note on those that were spelled otherwise."""
    best: dict[str, str] = {}
    for place in np.argsort(counts, kind="stable").tolist():
        best[folded(spelled[place])] = spelled[place]
    found = [best[folded(text)] for text in spelled]
    others = sorted({text for text, taken in zip(spelled, found, strict=True) if text != taken})
    if not others:
        return found, ()
    shown = ", ".join(f"{text!r} as {best[folded(text)]!r}" for text in others[:5]) + (", ..." if others[5:] else "")
    return found, (
        f"Column {column!r}: categories that differ by capitals or spaces alone were taken as one: {shown}. If they "
        f'differ in what they mean, write prepare = {{ columns = {{ "{column}" = "category" }} }}.',
    )


def _days(series: "pd.Series[Any]", notes: tuple[str, ...] = (), form: str = DATE) -> Cells:
    """Days since 1970-01-01, parts of days included."""
    import pandas as pd

    naive = series.dt.tz_convert(None) if getattr(series.dt, "tz", None) is not None else series
    days = naive.to_numpy("datetime64[ns]").astype(np.int64) / DAY_NS
    days[pd.isna(series).to_numpy()] = np.nan
    return Cells(days, None, form, notes)
