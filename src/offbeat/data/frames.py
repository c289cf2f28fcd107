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
    r"[?*.–—-]*|n[./]?a\.?|#n/?a|nan|nil|none|null|missing|unk(nown)?|undefined|unspecified|no (data|answer)"
    r"|not (available|known|applicable|given)",
    re.IGNORECASE,
)
"""What people write where they know nothing."""
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
ZONE_NAME = r"\s*(UTC|GMT)$"
CLOCK = re.compile(
    r"(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(:(?P<second>[0-5]\d(\.\d+)?))?( ?(Z|[+-]\d{2}:?\d{2}))?"
)
DATE_FORMS = {
    "%d.%m.%Y": re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}"),
    "%d.%m.%Y %H:%M": re.compile(r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}"),
    "%d.%m.%Y %H:%M:%S": re.compile(r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}:\d{2}"),
    "%Y/%m/%d": re.compile(r"\d{4}/\d{1,2}/\d{1,2}"),
    "%Y/%m/%d %H:%M": re.compile(r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}"),
    "%Y/%m/%d %H:%M:%S": re.compile(r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}:\d{2}"),
    "%d %b %Y": re.compile(r"\d{1,2} [A-Za-z]{3} \d{4}"),
    "%d-%b-%Y": re.compile(r"\d{1,2}-[A-Za-z]{3}-\d{4}"),
}
DAY_OR_MONTH = re.compile(r"\d{1,2}([/-])\d{1,2}\1\d{4}( \d{1,2}:\d{2}(:\d{2})?)?")
SHAPE = r"\s*(?P<sign>[€$£])?\s*(?P<whole>[+-]?(\d{{1,3}}(\{0}\d{{3}})+|\d+))(?P<rest>\{1}\d+)?\s*(?P<after>[%€$£])?\s*"
POINT_SHAPE, COMMA_SHAPE = (re.compile(SHAPE.format(*marks)) for marks in (",.", ".,"))
COMMA_NUMBER = re.compile(r"[€$£]?\s*[+-]?\d+(,\d+)+\s*[%€$£]?")
DAY_NS = 86_400_000_000_000


class Cells(NamedTuple):
    """One column. `texts`: those behind the codes, where it holds categories. `notes`: what a user should know."""

    values: Floats
    texts: tuple[str, ...] | None = None
    is_date: bool = False
    notes: tuple[str, ...] = ()


def cells_of(series: "pd.Series[Any]", where: str, *, as_text: bool = False, decimal_comma: bool = False) -> Cells:
    """`where` names file and column; `decimal_comma`: whether 1,5 can be a number."""
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
        return Cells(series.dt.total_seconds().to_numpy(np.float64) / 86_400)
    if types.is_string_dtype(kind) or types.is_object_dtype(kind):
        return _of_text(series, where, decimal_comma)
    raise BadData(f"{where} holds {kind}, not numbers, text or dates. Make numbers of it, or leave it out.")


def _of_text(series: "pd.Series[Any]", where: str, decimal_comma: bool) -> Cells:
    sample = _sample(series)
    plain = _undressed(series, sample, decimal_comma)
    if plain is not None:
        series, sample = plain, _sample(plain)
    _refuse_commas(sample, where)
    if any(isinstance(value, bool) for value in sample):
        return coded(series, where)
    if sample and all(isinstance(value, date) for value in sample):
        return _own_dates(series, where)
    return _numbers(series, sample, where) or _moments(series, sample, where) or coded(series, where)


def _sample(series: "pd.Series[Any]") -> list[Any]:
    """The first cells that say something."""
    return list(islice((value for value in series.dropna() if not _says_nothing(value)), LOOKED_AT))


def _says_nothing(value: Any) -> bool:
    return isinstance(value, str) and NOTHING_KNOWN.fullmatch(value.strip()) is not None


def _numbers(series: "pd.Series[Any]", sample: list[Any], where: str) -> Cells | None:
    """None where the column holds something else."""
    import pandas as pd

    if not any(_is_number(value) for value in sample) and series.notna().any():
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
    counts = {value: n for value, n in series[wrong].value_counts().items() if _says_nothing(value)}
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


def _moments(series: "pd.Series[Any]", sample: list[Any], where: str) -> Cells | None:
    """Dates and times of day; None where the column holds something else."""
    if sample and all(isinstance(value, time) or (isinstance(value, str) and _clock(value)) for value in sample):
        return _hours(series)
    found = _iso_dates(series, sample) if _all_match(sample, ISO_DATE) else _other_dates(series, sample, where)
    if found is None:
        return None
    wrong, notes = _unread(series, found.isna())
    return None if wrong.any() else _days(found, notes)


def _all_match(sample: list[Any], form: re.Pattern[str]) -> bool:
    return bool(sample) and all(isinstance(value, str) and form.fullmatch(value.strip()) for value in sample)


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


def _hour(value: Any) -> float:
    if isinstance(value, time):
        return value.hour + value.minute / 60 + (value.second + value.microsecond / 1e6) / 3600
    found = _clock(str(value))
    if found is None:
        return float("nan")
    return float(found["hour"]) + float(found["minute"]) / 60 + float(found["second"] or 0) / 3600


def _iso_dates(series: "pd.Series[Any]", sample: list[Any]) -> "pd.Series[Any]":
    import pandas as pd

    if any(re.search(ZONE_NAME, value) for value in sample):
        series = series.str.replace(ZONE_NAME, "Z", regex=True)
    return pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)


def _undressed(series: "pd.Series[Any]", sample: list[Any], decimal_comma: bool) -> "pd.Series[Any] | None":
    """The column with its numbers less signs of percent and money and marks between thousands, and with decimal points;
    None where it holds something else, or plain numbers already. What may be either stays as it is."""
    shape, group, point = (COMMA_SHAPE, ".", ",") if decimal_comma else (POINT_SHAPE, ",", ".")
    known = [found for value in sample if isinstance(value, str) and (found := shape.fullmatch(value))]
    groups = max((found["whole"].count(group) for found in known), default=0)
    pointed, signed = (any(found[name] for found in known) for name in ("rest", "sign"))
    signed = signed or any(found["after"] for found in known)
    ambiguous = groups == 1 and not pointed  # 1,234 is one thousand, or one and a bit
    if 2 * len(known) <= len(sample) or ambiguous or not (signed or groups or (decimal_comma and pointed)):
        return None
    bare = series.str.replace(r"[€$£%\s]", "", regex=True).str.replace(group, "", regex=False)
    return series.where(~series.str.fullmatch(shape, na=False), bare.str.replace(point, ".", regex=False))


def _other_dates(series: "pd.Series[Any]", sample: list[Any], where: str) -> "pd.Series[Any] | None":
    """Dates in one of the forms whose days and months cannot be mixed up; None where the column holds none."""
    import pandas as pd

    if _all_match(sample, DAY_OR_MONTH):
        raise BadData(
            f"{where} holds dates such as {sample[0]!r}, of which nobody can tell the day from the month. Write them "
            f'as 2024-12-31; or treat the column otherwise: prepare = {{ columns = {{ "{series.name}" = "leave-out" }} '
            '}, or "category".'
        )
    for form, pattern in DATE_FORMS.items():
        if _all_match(sample, pattern):
            return pd.to_datetime(series.str.strip(), errors="coerce", format=form, utc=True)
    return None


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


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_comma_number(value: Any) -> bool:
    return isinstance(value, str) and COMMA_NUMBER.fullmatch(value.strip()) is not None


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


def _refuse_commas(sample: list[Any], where: str) -> None:
    commas = [value for value in sample if _is_comma_number(value)]
    if commas and all(_is_comma_number(value) or _is_number(value) for value in sample):
        raise BadData(
            f"{where} holds numbers with commas, such as {commas[0]!r}, in a file whose columns are separated by "
            "commas: the comma may be a decimal point or may group thousands. Save the file with points and without "
            "groups, or with semicolons between the columns."
        )


def coded(series: "pd.Series[Any]", where: str) -> Cells:
    """Codes of the texts in their alphabetical order; nan where there is none."""
    import pandas as pd

    try:
        positions, distinct = pd.factorize(series)
        spelled = [id_text(value) for value in distinct]
    except (TypeError, UnicodeDecodeError):
        odd = next(value for value in series if isinstance(value, bytes) or getattr(value, "__hash__", None) is None)
        raise BadData(
            f"{where} holds {type(odd).__name__}, such as {str(odd)[:40]!r}, and every cell is to be one number, text "
            "or date. Make columns of single values of it, or leave the column out."
        ) from None
    texts = sorted(set(spelled) - {""})
    code = {text: float(i) for i, text in enumerate(texts)}
    table = np.array([*(code.get(text, np.nan) for text in spelled), np.nan])
    return Cells(table[positions], tuple(texts))


def _days(series: "pd.Series[Any]", notes: tuple[str, ...] = ()) -> Cells:
    """Days since 1970-01-01, parts of days included."""
    import pandas as pd

    naive = series.dt.tz_convert(None) if getattr(series.dt, "tz", None) is not None else series
    days = naive.to_numpy("datetime64[ns]").astype(np.int64) / DAY_NS
    days[pd.isna(series).to_numpy()] = np.nan
    return Cells(days, None, True, notes)
