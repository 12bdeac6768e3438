"""Times and sizes as people write them: `30s`, `1.5h`, `14d`; `512MiB`, `10MB`. Read as whole ms and bytes."""

import re
from collections.abc import Mapping
from typing import Final

UNITS_MS: Final[Mapping[str, int]] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_POWERS: Final = ("", "k", "m", "g", "t")
_BINARY_UNITS: Final[Mapping[str, int]] = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_NUMBER: Final = r"([0-9]{1,19})(?:\.([0-9]{1,9}))?"
_DURATION: Final = re.compile(rf"{_NUMBER}(ms|s|m|h|d)")
_SIZE: Final = re.compile(rf"{_NUMBER}(?:([kmgt])(i?))?b", re.IGNORECASE | re.ASCII)


def parse_duration_ms(text: str) -> int:
    """Raises ValueError: no number with one of `UNITS_MS` behind it, or it is not a whole number of milliseconds."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError("a time has a unit, as 250ms, 30s, 5m, 12h or 14d")
    return _whole(found[1], found[2] or "", UNITS_MS[found[3]])


def format_duration(ms: int) -> str:
    """In the largest unit that it is a whole number of."""
    return _format(ms, UNITS_MS, "ms")


def parse_size(text: str) -> int:
    """Bytes; `kB` is a thousand of them, `KiB` 1024. Raises ValueError: none of such units is behind the number."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError("a size has a unit, as 1500B, 10MB, 512MiB or 1GiB")
    base = 1024 if found[4] else 1000
    return _whole(found[1], found[2] or "", base ** _POWERS.index((found[3] or "").lower()))


def format_size(size_bytes: int) -> str:
    """In the largest unit of powers of 1024 that it is a whole number of."""
    return _format(size_bytes, _BINARY_UNITS, "B")


def _whole(number: str, fraction: str, unit: int) -> int:
    parts: int = 10 ** len(fraction)
    amount, rest = divmod(int(number + fraction) * unit, parts)
    if rest:
        raise ValueError("a fraction of the smallest unit")
    return amount


def _format(amount: int, units: Mapping[str, int], smallest: str) -> str:
    assert amount >= 0, amount
    unit = next((unit for unit, size in units.items() if amount and amount % size == 0), smallest)
    return f"{amount // units[unit]}{unit}"
