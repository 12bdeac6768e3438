"""Waiting for a cluster: picture after picture, not in silence, and no longer than the operator wants.

Brokers go on whoever waits. So a wait ends with the time it was given, or with Ctrl+C, and nothing else ends with it.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

from penstock.cli.cluster_view import Picture
from penstock.cli.failure import UNREACHABLE, CommandError
from penstock.cli.output import note

F = TypeVar("F", bound=Callable[..., Any])

POLL_S: Final = 0.5
CATCH_UP_S: Final = 5.0
"""What brokers get to hear of a change that another one has told of already."""
SILENCE_S: Final = 10.0
"""Without a picture, before that is told."""
STALL_S: Final = 60.0
"""Without anything new in the pictures, before that is told."""


class GaveUp(CommandError):
    """The time is up. What was begun goes on."""


class Patience:
    """The time that all waits of one command have together, from the first of them on; None is for ever."""

    def __init__(self, most_s: float | None = None) -> None:
        self._most_s = most_s
        self._ends_at: float | None = None

    def wait(self, label: str, otherwise: str) -> "Wait":
        """
        Args:
            otherwise: what to know when the time is up: what goes on, and how to look at it.
        """
        if self._most_s is not None and self._ends_at is None:
            self._ends_at = time.monotonic() + self._most_s
        return Wait(self, label, otherwise)

    def check(self, label: str, explain: Callable[[], str], otherwise: str) -> None:
        """Raise `GaveUp` if the time is up."""
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            reason = explain()
            why = f": {reason}" if reason else ""
            raise GaveUp(f"{label}: not done after {self._most_s:g} s{why}; {otherwise}")


class Wait:
    """One of them. Says on standard error when no broker answers, and when nothing changes, and why."""

    def __init__(self, patience: Patience, label: str, otherwise: str) -> None:
        self._patience = patience
        self._label = label
        self._otherwise = otherwise
        self._mark: object = None
        self._since = time.monotonic()
        self._told = ""
        self._explain: Callable[[], str] = str

    def pictures(self, ask: Callable[[], Picture]) -> Iterator[Picture]:
        """One after the other, for ever. Raises `GaveUp`."""
        answered, told = time.monotonic(), False
        while True:
            try:
                picture = ask()
            except CommandError as error:
                if error.code != UNREACHABLE:
                    raise
                silent_s = time.monotonic() - answered
                if silent_s >= SILENCE_S and not told:
                    note(f"{self._label}: no broker answers for {silent_s:.0f} s, trying on: {error}")
                    told = True
                self._patience.check(self._label, lambda: "no broker answers", self._otherwise)
            else:
                yield picture
                answered, told = time.monotonic(), False
                self._patience.check(self._label, self._explain, self._otherwise)
            time.sleep(POLL_S)

    def see(self, mark: object, explain: Callable[[], str]) -> None:
        """Note how far it is; `explain` says why it is no further, and is asked only if it has to be told."""
        self._explain = explain
        now = time.monotonic()
        if mark != self._mark:
            self._mark, self._since, self._told = mark, now, ""
        elif now - self._since >= STALL_S and (reason := explain()) != self._told:
            note(f"{self._label}: nothing new for {now - self._since:.0f} s: {reason}")
            self._told = reason


def try_again(ask: Callable[[], Picture]) -> Picture | None:
    """A picture; None where brokers that go and come are the reason that there is none now."""
    try:
        return ask()
    except CommandError as error:
        if error.code != UNREACHABLE:
            raise
        return None


def patience_option(command: F) -> F:
    """Adds --wait-at-most; the command gets it as `most_s`."""
    return click.option(
        "--wait-at-most",
        "most_s",
        metavar="SECONDS",
        type=click.FloatRange(0, 30 * 86_400),
        help="Wait no longer: exit code 1 then, and brokers go on (default: no limit).",
    )(command)
