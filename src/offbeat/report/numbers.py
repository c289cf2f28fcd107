"""Numbers as people read them: few digits, a unit, and a dash for what is not known."""

import math

UNKNOWN = "–"
ROUNDING_S = 1e-9  # what is left of a difference of two times

_SIZES = ("B", "kB", "MB", "GB", "TB")


def short(value: float | None, digits: int = 4) -> str:
    """A value to a few significant digits: 0.4318, 12.5, 9.11e-07."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == int(value) and abs(value) < 10**6:
        return str(int(value))
    return f"{value:.{digits}g}"


def count(number: float) -> str:
    """A whole number with its thousands set apart: 18,412."""
    return f"{round(number):,}"


def seconds(value: float | None) -> str:
    """A duration: 350 µs, 1.20 ms, 48.3 s, 2 min 05 s, 3 h 10 min."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < ROUNDING_S:
        return "0 s"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def short_seconds(value: float | None) -> str:
    """The same in at most eight characters: 2.1 min, 3.2 h."""
    if value is None or not math.isfinite(value) or value < 99.95:
        return seconds(value)
    return f"{value / 60:.1f} min" if value < 5940 else f"{value / 3600:.1f} h"


def size(number_bytes: float | None) -> str:
    """An amount of bytes in decimal units: 512 B, 1.15 kB, 31.5 MB."""
    if number_bytes is None or not math.isfinite(number_bytes):
        return UNKNOWN
    if number_bytes < 1000:
        return f"{round(number_bytes)} B"
    power = 1
    while power < len(_SIZES) - 1 and number_bytes / 1000**power >= 999.5:
        power += 1
    return f"{number_bytes / 1000**power:.3g} {_SIZES[power]}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else UNKNOWN
