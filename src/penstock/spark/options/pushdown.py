"""What Spark's filters say about which offsets are worth fetching.

Spark checks every row again, so bounds may let through more than the filters do, and never less. It hands over a time
as an aware datetime in UTC, whatever the time zone of the session, and integers cast to the type of the column. A set
of values is a list.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """None is no bound. `*_to` is the first that is left out; ranges may be empty.

    A time bounds from below only: all records before the first one at or after it are older, but those behind it need
    not be younger.
    """

    partitions: frozenset[int] | None = None
    partition_from: int | None = None
    partition_to: int | None = None
    offset_from: int | None = None
    offset_to: int | None = None
    timestamp_from_ms: int | None = None

    def keeps(self, partition: int) -> bool:
        """Whether records of this partition can pass."""
        return (
            (self.partitions is None or partition in self.partitions)
            and (self.partition_from is None or partition >= self.partition_from)
            and (self.partition_to is None or partition < self.partition_to)
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What all of the filters together leave, as far as they are about partitions, offsets and times."""
    partitions: frozenset[int] | None = None
    lowest: dict[str, int] = {}
    ends: dict[str, int] = {}
    for each in filters:
        column, values = _compared(each)
        if not values:
            continue
        if column == "partition" and isinstance(each, EqualTo | EqualNullSafe | In):
            partitions = frozenset(values) if partitions is None else partitions & frozenset(values)
            continue
        if not isinstance(each, LessThan | LessThanOrEqual):
            # A time's fraction of a millisecond is cut off, so the next one must not be skipped.
            beyond = isinstance(each, GreaterThan) and column != "timestamp"
            lowest[column] = max(lowest.get(column, min(values)), min(values) + beyond)
        if not isinstance(each, GreaterThan | GreaterThanOrEqual):
            end = max(values) + (not isinstance(each, LessThan))
            ends[column] = min(ends.get(column, end), end)
    timestamp = lowest.get("timestamp")
    return Bounds(
        partitions=partitions,
        partition_from=lowest.get("partition"),
        partition_to=ends.get("partition"),
        offset_from=lowest.get("offset"),
        offset_to=ends.get("offset"),
        # Brokers take times before 1970 for questions of another kind.
        timestamp_from_ms=timestamp if timestamp is not None and timestamp > 0 else None,
    )


def _compared(each: Filter) -> tuple[str, list[int]]:
    """The column and the whole numbers it is compared with; none of them where the filter cannot be used."""
    if not isinstance(
        each, EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual
    ):
        return "", []
    if len(each.attribute) != 1 or each.attribute[0] not in ("partition", "offset", "timestamp"):
        return "", []
    column = each.attribute[0]
    # Nothing equals null, and a set with a null in it has the others still.
    given = [value for value in each.value if value is not None] if isinstance(each, In) else [each.value]
    numbers = [_number(column, value) for value in given]
    if any(number is None for number in numbers):
        return column, []
    return column, [number for number in numbers if number is not None]


def _number(column: str, value: Any) -> int | None:
    if column == "timestamp":
        # Without a time zone it is not known which moment is meant.
        return (value - _EPOCH) // _MILLISECOND if isinstance(value, datetime) and value.tzinfo else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
