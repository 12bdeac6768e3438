"""Numbers for people: three digits that matter, and a unit."""

from typing import Final

_STEPS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def format_count(number: float) -> str:
    """`999`, `12.3k`, `4.56M`; whole numbers below 10,000 are written out."""
    if abs(number) < 10_000:
        return f"{number:,.0f}"
    for size, letter in _STEPS:
        if abs(number) >= size * 0.9995:
            return f"{number / size:.3g}{letter}" if abs(number) < size * 1000 else f"{number / size:,.0f}{letter}"
    return f"{number:,.0f}"


def format_rate(rows_per_s: float) -> str:
    """`0.5 rows/s`, `12.3k rows/s`."""
    return f"{rows_per_s:.1f} rows/s" if 0 < rows_per_s < 10 else f"{format_count(rows_per_s)} rows/s"


def format_seconds(seconds: float) -> str:
    """`80 ms`, `1.5 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def plural(number: int, thing: str) -> str:
    """`1 row`, `12.3k rows`, `2 batches`."""
    ending = "" if number == 1 else "es" if thing.endswith("ch") else "s"
    return f"{format_count(number)} {thing}{ending}"
