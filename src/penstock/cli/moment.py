"""Points in time as people write them: a date, a date with a time, how long ago, or Kafka's milliseconds."""

import re
import time
from datetime import datetime
from typing import Final

import click

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LARGEST: Final = 2**63 - 1
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


class Moment(click.ParamType[int]):
    """Milliseconds since 1970, from `2026-05-01`, `2026-05-01T12:30:00+02:00`, `90m` (ago) or `1777593600000`.

    A time without a zone is in this machine's.
    """

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if text.isdecimal():
            return _clamp(int(text))
        if ago := _AGO.fullmatch(text):
            return _clamp(time.time() * 1000 - float(ago[1]) * _UNITS_MS[ago[2]])
        try:
            return _clamp(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is no point in time; write 2026-05-01, 2026-05-01T12:30:00Z, 90m or 7d (ago), "
                "or milliseconds since 1970.",
                param,
                ctx,
            )


def _clamp(moment_ms: float) -> int:
    """What fits Kafka's field; below 0 there are its words for the start and the end, which nobody meant."""
    return int(min(max(moment_ms, 0), _LARGEST))
