"""Which columns a read is asked for. Needs no Spark, so that options are checked where there is none."""

from typing import Final

from penstock.spark.errors import OptionError

_HEADERS: Final = "headers"
NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", _HEADERS)
"""Of all columns that a record has besides the fields of its value, in their order."""
_BY_LOWER: Final = {name.lower(): name for name in NAMES}


def select_columns(asked: str | None, *, headers: bool, typed: bool) -> tuple[str, ...]:
    """
    Args:
        asked: names with commas between; None for all but headers.
        headers: whether headers come last if they are not among them.
        typed: whether the value's fields follow, so that none may be asked for.

    Raises:
        OptionError: a name is no column's, or there twice, or there is none.
    """
    if asked is None:
        columns = [name for name in NAMES if name != _HEADERS]
    else:
        columns = []
        for word in filter(None, map(str.strip, asked.split(","))):
            name = _BY_LOWER.get(word.lower())
            if name is None:
                raise OptionError(f"columns names {word!r}, which no record has; there is {', '.join(NAMES)}")
            if name in columns:
                raise OptionError(f"columns names {name!r} twice; leave one out")
            columns.append(name)
    if headers and _HEADERS not in columns:
        columns.append(_HEADERS)
    if not columns and not typed:
        raise OptionError(f"columns = {asked!r} names no column; there is {', '.join(NAMES)}")
    return tuple(columns)
