"""Where pipelines keep what outlives a run, and who may touch it.

HOME/driver.*                  of the background driver; see penstock.pipelines.driver
HOME/<name>/lock               flock of whoever runs it; the text in it is for people
HOME/<name>/identity.json      what its state was made by
HOME/<name>/wanted.json        what the background driver shall do with it
HOME/<name>/status.json        how it does
HOME/<name>/events.jsonl       what happened; .1 and .2 are older
HOME/<name>/checkpoint/        Spark's
HOME/<name>/sinks/<sink>/      what a sink keeps on the driver
HOME/<name>/previous-N/        what a reset moved away
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from penstock.pipelines.errors import Busy, PipelineError
from penstock.pipelines.home import sealed
from penstock.pipelines.home.events import EventLog
from penstock.pipelines.home.status import Status, now_ms

T = TypeVar("T")

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
DRIVER_PREFIX: Final = "driver."
_LOCK_PATIENCE_S: Final = 0.25


def default_home(env: Mapping[str, str] | None = None) -> Path:
    """$PENSTOCK_PIPELINES, else under $XDG_STATE_HOME, else under ~/.local/state."""
    env = os.environ if env is None else env
    if chosen := env.get("PENSTOCK_PIPELINES"):
        return Path(chosen).expanduser().absolute()
    state = env.get("XDG_STATE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return root / "penstock" / "pipelines"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs a pipeline, as far as they said; pid 0 where they had no time to."""

    pid: int
    command: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What a pipeline's state was made by: a hash of each node."""

    nodes: Mapping[str, str]
    spec_file: str
    created_ms: int


class Wish(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the background driver shall do with a pipeline. `asked_ns` tells one wish from the same one said again."""

    file: str
    state: Wish
    once: bool = False
    asked_ns: int = field(default_factory=time.time_ns)

    @property
    def asked_ms(self) -> int:
        return self.asked_ns // 1_000_000


class Home:
    """A directory with pipelines in it; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(each.name for each in entries if _is_name(each.name) and each.is_dir())
        except FileNotFoundError:
            return []

    def pipeline(self, name: str) -> "PipelineDirectory":
        """Nothing is made until something is written.

        Raises:
            PipelineError: that is no name.
        """
        if not _is_name(name):
            raise PipelineError(
                f"{name!r} is no pipeline's name: that begins with a small letter or a digit, goes on with those, '.', "
                f"'_' or '-', has 100 characters at most and does not begin with {DRIVER_PREFIX!r}"
            )
        return PipelineDirectory(name, self.path / name)

    def claim(self, name: str, file: str) -> "PipelineDirectory":
        """The directory of the pipeline that is called so in a file.

        Raises:
            PipelineError: that is no name, or what is kept under it is another file's.
        """
        directory = self.pipeline(name)
        if other := directory.find_other(file):
            raise PipelineError(
                f"pipeline {name}: what is kept under that name in {self.path} is the state of {other}. Give this one "
                f"another name, or another home (--home DIR); if it takes the other's place, remove {other}, or begin "
                f"anew with: penstock pipeline reset {name}"
            )
        return directory


class PipelineDirectory:
    """What is kept of one pipeline."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.events = EventLog(path / "events.jsonl")

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @contextmanager
    def locked(self, command: str) -> Iterator[None]:
        """Holds the pipeline for this process; the kernel lets go of it when the process dies, however it does.

        Raises:
            Busy: somebody holds it already.
        """
        self._make()
        with Lock(self.path / "lock").held(command) as holder:
            if holder is not None:
                who = f"process {holder.pid} ({holder.command})" if holder.pid else "a process that has just begun"
                raise Busy(
                    f"pipeline {self.name} is at work in {who}. Stop that first: penstock pipeline stop {self.name}, "
                    "or Ctrl+C where it runs"
                )
            yield

    def holder(self) -> Holder | None:
        """Who runs it now."""
        return Lock(self.path / "lock").holder()

    def load_identity(self) -> Identity | None:
        path = self.path / "identity.json"
        way_out = (
            "Restore it from a backup; or begin anew, with the sources read from their 'from' again: "
            f"penstock pipeline reset {self.name}"
        )
        return _load(path, way_out, lambda body: Identity(body["nodes"], body["spec_file"], body["created_ms"]))

    def save_identity(self, identity: Identity) -> None:
        self._make()
        sealed.save(self.path / "identity.json", asdict(identity))

    def find_other(self, file: str) -> str:
        """The file whose state this is, if it is not this one; "" where there is no state, or its file has moved."""
        known = self.load_identity()
        if known is None:
            return ""
        other = known.spec_file
        if not os.path.isabs(other):  # an older identity has it as it was typed
            last = self.load_status()
            other = last.file if last else ""
        if not os.path.exists(other) or os.path.abspath(file) == other:
            return ""
        return "" if os.path.exists(file) and os.path.samefile(file, other) else other

    def load_status(self) -> Status | None:
        path = self.path / "status.json"
        try:
            if not path.read_bytes().strip(b"\0"):
                return None  # what a power cut may leave of a file that nobody synced
        except FileNotFoundError:
            return None
        way_out = "It holds numbers for people only: remove it, and the counts begin at zero"
        return _load(path, way_out, Status.from_json)

    def save_status(self, status: Status) -> None:
        """Some times a second, so not durable until the pipeline has ended."""
        self._make()
        sealed.save(self.path / "status.json", status.to_json(), durable=status.state.has_ended)

    def load_wanted(self) -> Wanted | None:
        path = self.path / "wanted.json"
        way_out = f"Remove it, then say what you want: penstock pipeline start FILE, or stop {self.name}"
        return _load(
            path, way_out, lambda body: Wanted(body["file"], Wish(body["state"]), body["once"], body["asked_ns"])
        )

    def save_wanted(self, wanted: Wanted) -> None:
        self._make()
        sealed.save(self.path / "wanted.json", asdict(wanted))

    def reset(self) -> Path | None:
        """Move the state into a `previous-N`; returns that, or None where there was nothing to move.

        The checkpoint goes first: state without an identity would be taken up by steps it was not made by; a pipeline
        whose checkpoint is not that of its counters does not start.

        Raises:
            Busy: it is at work.
        """
        if not self.path.is_dir():
            return None
        with self.locked(f"penstock pipeline reset {self.name}"):
            for lock in self.path.glob("backfills/*/*/lock"):
                if (holder := Lock(lock).holder()) is not None:
                    raise Busy(f"pipeline {self.name}: process {holder.pid} runs a backfill of it. Stop that first")
            there = [self.path / name for name in _STATE if os.path.lexists(self.path / name)]
            if not there:
                return None
            target = self._next_previous()
            target.mkdir()
            for each in there:
                os.rename(each, target / each.name)
                sealed.sync_directory(target)
                sealed.sync_directory(self.path)
        self.events.write("info", "reset", f"its state was moved to {target}", moved=[each.name for each in there])
        return target

    def _next_previous(self) -> Path:
        taken = [int(each.name.rpartition("-")[2]) for each in self.path.glob("previous-*") if _PREVIOUS(each.name)]
        return self.path / f"previous-{max(taken, default=0) + 1}"

    def _make(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # events and identity may tell of rows
            sealed.sync_directory(self.path.parent)


_STATE: Final = ("checkpoint", "backfills", "beginning.json", "sinks", "identity.json", "counters.json", "status.json")
_PREVIOUS: Final = re.compile(r"previous-[0-9]+").fullmatch


class Lock:
    """An flock on a file that is never removed, with a line in it about who holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self, command: str) -> Iterator[Holder | None]:
        """Gives None when the lock is ours until the end, else who has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _take(fd):
                yield _read_holder(fd)
                return
            os.ftruncate(fd, 0)
            holder = Holder(os.getpid(), command, now_ms())
            os.pwrite(fd, orjson.dumps(asdict(holder)), 0)
            try:
                yield None
            finally:
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def holder(self) -> Holder | None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return _read_holder(fd)
        finally:
            os.close(fd)


def _take(fd: int) -> bool:
    """Somebody who only looks whether the lock is free has it for a moment; so one refusal is no answer yet."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


def _read_holder(fd: int) -> Holder:
    try:
        body = orjson.loads(os.pread(fd, 4096, 0))
        return Holder(int(body["pid"]), str(body["command"]), int(body["since_ms"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return Holder(0, "", 0)  # it has the lock and has not said who it is yet


def _load(path: Path, way_out: str, decode: Callable[[dict[str, Any]], T]) -> T | None:
    body = sealed.load(path, way_out)
    if body is None:
        return None
    try:
        return decode(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise PipelineError(f"{path} is damaged: not what such a file holds ({what}). {way_out}") from None


def _is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None and not name.startswith(DRIVER_PREFIX)
