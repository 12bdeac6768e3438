"""What a sink offers to one who looks on: its keys in the pipeline's file, moments of its work, its mark, its rows."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .rows import Row

Look = Callable[[], set[str]]
"""What is there now; a name that is new tells that something has just happened."""


class Destination(Protocol):
    """One sink.

    Attributes:
        upserts: of each slot only the last row is there.
    """

    name: str
    upserts: bool

    def keys(self) -> dict[str, Any]:
        """As they stand in the pipeline's file."""
        ...

    def phases(self) -> Mapping[str, Look]:
        """Moments of its work in a micro-batch, in their order."""
        ...

    def mark(self, query: str) -> int | None:
        """The last micro-batch that is in it."""
        ...

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        """Its rows by each way to read them; by partitions where there are some."""
        ...


def names_in(directory: Path, *endings: str) -> Look:
    """Names of the files in a directory."""

    def look() -> set[str]:
        try:
            return {name for name in os.listdir(directory) if not endings or name.endswith(endings)}
        except FileNotFoundError:
            return set()

    return look


def paths_under(directory: Path, pattern: str) -> Look:
    def look() -> set[str]:
        try:
            return {str(path) for path in directory.glob(pattern)}
        except FileNotFoundError:  # a directory went while it was listed
            return set()

    return look


def changes_of(path: Path) -> Look:
    """Each state of a file."""

    def look() -> set[str]:
        try:
            told = path.stat()
        except FileNotFoundError:
            return set()
        return {f"{told.st_ino}-{told.st_mtime_ns}"}

    return look
