"""What happened to a pipeline: one JSON object a line, in a file that moves aside at 10 MB; two old ones are kept.

Several processes may write (a run, the driver, a command): each holds the file's flock for the one line it appends, and
whoever finds the file too large moves it while it holds that. A reader that follows knows its file by the inode and
goes on with the next younger one.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

SIZE_BYTES: Final = 10 * 1024 * 1024
_LOOK_EVERY_S: Final = 0.2
_OWN: Final = ("time", "level", "event", "text")


@dataclass(frozen=True, slots=True)
class Event:
    """`time`: ISO 8601, UTC. `level`: info, warning or error. `event`: a word to search for. `facts`: the rest."""

    time: str
    level: str
    event: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"time": self.time, "level": self.level, "event": self.event, "text": self.text, **self.facts}


class EventLog:
    """The file, and those it was moved to."""

    def __init__(self, path: Path, *, size_bytes: int = SIZE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def write(self, level: str, event: str, text: str, **facts: Any) -> None:
        """Append a line. Facts may be anything; what JSON has no form for becomes text."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {**facts, "time": moment, "level": level, "event": event, "text": text}
        data = orjson.dumps({name: line[name] for name in (*_OWN, *facts)}, default=str) + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while not self._append(data):
            pass

    def _append(self, data: bytes) -> bool:
        """Whether it was done; else the file moved meanwhile."""
        with open(self._path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _inode(self._path) != os.fstat(file.fileno()).st_ino:
                return False
            size = os.fstat(file.fileno()).st_size
            if size and size + len(data) > self._size_bytes:
                first, second = self._older()
                if first.exists():
                    os.replace(first, second)
                os.replace(self._path, first)
                return False
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                data = b"\n" + data  # a power cut tore the last line; it shall not take this one with it
            file.write(data)
        return True

    def read(self, last: int = 100) -> list[Event]:
        """The last events, oldest first."""
        found: list[Event] = []
        for path in (self._path, *self._older()):
            if len(found) >= last:
                break
            try:
                lines = path.read_bytes().split(b"\n")
            except FileNotFoundError:
                continue
            found = [*filter(None, map(_parse, lines[-last - 1 :])), *found]
        return found[-last:] if last > 0 else []

    def follow(self, last: int = 0) -> Iterator[Event]:
        """The last events, then each new one as it comes, for ever."""
        files = self._open_all()
        try:
            yield from self._follow(files, last)
        finally:
            for file in files:
                file.close()

    def _follow(self, files: list[BinaryIO], last: int) -> Iterator[Event]:
        past = [event for file in files for event in _read_lines(file)]
        yield from past[max(len(past) - last, 0) :]
        del past
        while True:
            if files:
                yield from _read_lines(files[-1])
            younger = self._open_younger(files[-1] if files else None)
            if younger is None:
                time.sleep(_LOOK_EVERY_S)
                continue
            if files:
                yield from _read_lines(files[-1])  # what came between the last look and the move
            for file in files:
                file.close()
            files[:] = [younger]

    def _older(self) -> tuple[Path, Path]:
        name = self._path.name
        return self._path.with_name(f"{name}.1"), self._path.with_name(f"{name}.2")

    def _open_all(self) -> list[BinaryIO]:
        """Oldest first. One that is moved while they are opened comes once."""
        files: dict[int, BinaryIO] = {}
        for path in (*reversed(self._older()), self._path):
            file = _open(path)
            if file is None:
                continue
            inode = os.fstat(file.fileno()).st_ino
            if inode in files:
                file.close()
            else:
                files[inode] = file
        return list(files.values())

    def _open_younger(self, file: BinaryIO | None) -> BinaryIO | None:
        """The file that was begun after this one; the oldest there is if this one is gone; None if it is the last."""
        if file is None:
            return _open(self._path)
        mine = os.fstat(file.fileno()).st_ino
        names = (self._path, *self._older())
        inodes = [_inode(name) for name in names]
        if inodes[0] in (mine, 0):
            return None
        at = inodes.index(mine) if mine in inodes else sum(map(bool, inodes))
        younger = _open(names[at - 1])
        if younger is not None and os.fstat(younger.fileno()).st_ino != inodes[at - 1]:
            younger.close()  # moved on just now: the next look sees where
            return None
        return younger


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def _read_lines(file: BinaryIO) -> Iterator[Event]:
    """Whole lines from where the file stands; half a line is left for the next time."""
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(at)
            return
        event = _parse(line)
        if event is not None:
            yield event


def _parse(line: bytes) -> Event | None:
    """None for what is no event: a line that a power cut tore."""
    try:
        body = orjson.loads(line)
        moment, level, event, text = (str(body.pop(name)) for name in _OWN)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    return Event(moment, level, event, text, body)
