"""Times as queues take them, each within what is allowed: said by the flag that is wrong, before a server is asked."""

from typing import Any

import click

from penstock.cli.transactions import Duration


class Within(Duration):
    """A duration with bounds.

    Args:
        allowed: what it is, for people: `a lease lasts`, and its bounds follow.
    """

    def __init__(self, allowed: str, least_ms: int, most_ms: int) -> None:
        self._allowed = allowed
        self._least_ms = least_ms
        self._most_ms = most_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from penstock.quantities import format_duration

        duration_ms = super().convert(value, param, ctx)
        if self._least_ms <= duration_ms <= self._most_ms:
            return duration_ms
        bounds = f"{format_duration(self._least_ms)} to {format_duration(self._most_ms)}"
        self.fail(f"'{value}' is out of bounds; {self._allowed} {bounds}.", param, ctx)


VISIBILITY = Within("a lease lasts", 1000, 12 * 3_600_000)
RETURN_DELAY = Within("a message that comes back waits", 0, 7 * 86_400_000)
TIME_TO_LIVE = Within("a message may wait for", 1, 36_500 * 86_400_000)
