"""When a cron expression fires: five fields, read by cronsim as Debian's cron reads them, in a time zone.

An expression whose minute and hour both begin with no `*` names times of day. Such a time that does not exist on the
day the clocks go forward is the first one that does; one that exists twice on the day they go back is the first of the
two. So it fires once either way. With a `*` in front it goes by the time that passes: every hour is every hour, also
the one that the clock shows twice, and nothing is made up for one that it never shows.

Moments are epoch milliseconds. What an expression fires at are whole minutes.
"""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Final, NamedTuple

from cronsim import CronSim, CronSimError

from penstock.errors import Code, PenstockError

LONGEST: Final = 200
"""Of an expression, in characters."""
_MINUTE_MS: Final = 60_000
_SHOWN: Final = 60


class _Field(NamedTuple):
    name: str
    allowed: str


_FIELDS: Final = (
    _Field("minute", "0 to 59"),
    _Field("hour", "0 to 23"),
    _Field("day of the month", "1 to 31, L for the last"),
    _Field("month", "1 to 12, JAN to DEC"),
    _Field("day of the week", "0 to 7, SUN to SAT, both 0 and 7 being Sunday"),
)
_WAY_OUT: Final = "the fields are minute, hour, day of the month, month and day of the week: '30 6 * * MON-FRI'"


class Cron:
    """An expression in a zone. Raises PenstockError INVALID_SCHEDULE.

    Attributes:
        text: the expression, with one space between its fields.
    """

    __slots__ = ("_zone", "text")

    def __init__(self, text: str, zone: tzinfo = UTC) -> None:
        self.text = _check(text)
        self._zone = zone

    def next_after(self, moment_ms: int) -> int | None:
        """The first time it fires after a moment; None if that is more than fifty years away, or has no date."""
        try:
            found = CronSim(self.text, datetime.fromtimestamp(moment_ms // 1000, self._zone))
            for each in found:
                planned_ms = int(each.timestamp()) * 1000
                if planned_ms > moment_ms:  # between the two of a time that exists twice, the first one is over
                    return planned_ms
        except (OverflowError, ValueError, OSError):  # beyond the years that have dates
            pass
        return None

    def latest(self, first_ms: int, until_ms: int) -> int:
        """The last time it fires up to a moment, given one before that.

        However many there are, it looks at as many as the span can be halved.
        """
        if not self._fires(first_ms, until_ms):
            return first_ms
        low, high, step = first_ms, until_ms, _MINUTE_MS
        while high - low > step:  # it is probably near the end
            if self._fires(until_ms - step, until_ms):
                low = until_ms - step
                break
            high, step = until_ms - step, 2 * step
        while high - low > _MINUTE_MS:
            middle = (low + high) // 2
            if self._fires(middle, until_ms):
                low = middle
            else:
                high = middle
        found = self.next_after(low)
        return first_ms if found is None else found

    def _fires(self, after_ms: int, until_ms: int) -> bool:
        found = self.next_after(after_ms)
        return found is not None and found <= until_ms


Crons = Callable[[str, str], Cron | None]
"""Of an expression and the name of a zone; None if that zone is not known here."""


def _check(text: str) -> str:
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    if len(text) > LONGEST:
        raise _invalid(f"cron expression {shown!r} has {len(text)} characters; allowed: {LONGEST}")
    words = text.split()
    if len(words) != len(_FIELDS):
        raise _invalid(f"cron expression {shown!r} has {len(words)} fields, not {len(_FIELDS)}")
    for at, (word, field) in enumerate(zip(words, _FIELDS, strict=True)):
        alone = ["*"] * len(_FIELDS)
        alone[at] = word
        # `*` beside a day that no month has is refused by the whole expression only
        if not _is_read(" ".join(alone)):
            raise PenstockError(
                Code.INVALID_SCHEDULE,
                f"cron expression {shown!r}: there is no {field.name} {word[:_SHOWN]!r}",
                help=f"allowed: {field.allowed}, as *, lists (1,5), ranges (1-5) and steps (*/5)",
            )
    expression = " ".join(words)
    if not _is_read(expression):
        raise _invalid(f"cron expression {shown!r} never fires: no such month has such a day")
    return expression


def _is_read(expression: str) -> bool:
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError):
        return False
    return True


def _invalid(text: str) -> PenstockError:
    return PenstockError(Code.INVALID_SCHEDULE, text, help=_WAY_OUT)
