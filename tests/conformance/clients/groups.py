"""What every library's adapter offers for consumer groups: members that a thread polls, and the groups' admin side.

A member polls for as long as it lives, as an application does; the case looks at what it owns and what it got. What is
asked of it (commit, seek) runs between two polls, in the thread that polls: few consumers may be shared by threads.
"""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from .client import DEADLINE_S

T = TypeVar("T")
Place = tuple[str, int]

SESSION_MS = 6_000  # the least a broker takes unless told otherwise
HEARTBEAT_MS = 200
POLL_S = 0.05
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


class Seen(NamedTuple):
    place: Place
    offset: int
    value: bytes


class Change(NamedTuple):
    """What a member was told about its partitions: `assigned`, `revoked` or `lost`."""

    kind: str
    places: frozenset[Place]


@dataclass(frozen=True, slots=True)
class Options:
    """How a member joins. With `places` it joins nothing and reads just those, from their beginning."""

    group: str
    topics: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    pattern: str | None = None
    instance: str | None = None
    client_id: str = "judge"
    isolation: str = READ_UNCOMMITTED
    auto_commit_ms: int | None = None
    reset: str = "earliest"


def wait_until(condition: Callable[[], bool], describe: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    """Return once the condition holds; at the deadline fail with the description."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, describe()
        pause.wait(0.01)


class Member(ABC):
    """One consumer, polled until it leaves."""

    options: Options

    @property
    @abstractmethod
    def assigned(self) -> frozenset[Place]: ...

    @property
    @abstractmethod
    def changes(self) -> list[Change]: ...

    @property
    @abstractmethod
    def received(self) -> list[Seen]: ...

    def values(self) -> list[bytes]:
        return [each.value for each in self.received]

    @abstractmethod
    def start_commit(self, offsets: Mapping[Place, Committed] | None) -> "Future[None]": ...

    @abstractmethod
    def start_committed(self, places: Iterable[Place]) -> "Future[dict[Place, Committed]]": ...

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        """Commit the offsets given, or those of all it received. Raises `ClientError`."""
        self.start_commit(offsets).result(2 * DEADLINE_S)

    def committed(self, *places: Place) -> dict[Place, Committed]:
        """The group's offsets; a place without one is left out."""
        return self.start_committed(places).result(2 * DEADLINE_S)

    @abstractmethod
    def seek(self, place: Place, offset: int) -> None: ...

    @abstractmethod
    def leave(self) -> None:
        """Close the consumer: a dynamic member leaves its group, a static one stays until its session ends."""


class PolledMember(Member):
    """A member in this process; a subclass opens, polls and closes the library's consumer."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self.options = options
        self._bootstrap = bootstrap
        self._assigned: frozenset[Place] = frozenset()
        self._changes: list[Change] = []
        self._received: list[Seen] = []
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"member of {options.group}", daemon=True)
        self._thread.start()

    @property
    def assigned(self) -> frozenset[Place]:
        self._check()
        return self._assigned

    @property
    def changes(self) -> list[Change]:
        self._check()
        return list(self._changes)

    @property
    def received(self) -> list[Seen]:
        self._check()
        return list(self._received)

    def start_commit(self, offsets: Mapping[Place, Committed] | None) -> "Future[None]":
        return self.start(lambda: self._commit(offsets))

    def start_committed(self, places: Iterable[Place]) -> "Future[dict[Place, Committed]]":
        return self.start(lambda: self._committed(list(places)))

    def seek(self, place: Place, offset: int) -> None:
        self.start(lambda: self._seek(place, offset)).result(DEADLINE_S)

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), f"the consumer of {self.options.group} did not close"

    def start(self, job: Callable[[], T]) -> "Future[T]":
        """Run the job in the polling thread, after the poll under way."""
        self._check()
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def _check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"a member of {self.options.group} failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            self._open()
            try:
                while not self._leaving.is_set():
                    while not self._jobs.empty():
                        job, future = self._jobs.get()
                        try:
                            future.set_result(job())
                        except BaseException as failure:  # noqa: BLE001 the asker gets it
                            future.set_exception(failure)
                    self._poll()
            finally:
                self._close()
        except BaseException as failure:  # noqa: BLE001 whoever looks at the member gets it
            self._failure = failure

    def _note(self, kind: str, places: Iterable[Place]) -> None:
        if found := frozenset(places):
            self._changes.append(Change(kind, found))

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _poll(self) -> None:
        """Wait a moment for records and note them and the assignment."""

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _commit(self, offsets: Mapping[Place, Committed] | None) -> None: ...

    @abstractmethod
    def _committed(self, places: list[Place]) -> dict[Place, Committed]: ...

    @abstractmethod
    def _seek(self, place: Place, offset: int) -> None: ...


class Listing(NamedTuple):
    """A listed group; None where the client does not tell."""

    state: str | None
    kind: str | None
    protocol: str | None


class Described(NamedTuple):
    """A described group; members are (client id, instance or None, their partitions)."""

    state: str
    assignor: str
    members: tuple[tuple[str, str | None, frozenset[Place]], ...]


class GroupAdmin(ABC):
    """A client library's admin side of groups."""

    name: str
    can_change_offsets = True
    can_delete_offsets = True
    # Whether the metadata of offsets can be told from what it hands out.
    shows_metadata = True
    # Whether it can describe groups of the newer protocol.
    new_protocol = True

    @abstractmethod
    def groups(self) -> dict[str, Listing]: ...

    @abstractmethod
    def describe(self, group: str) -> Described: ...

    @abstractmethod
    def offsets(self, group: str, *places: Place) -> dict[Place, Committed]:
        """The offsets of the places given or else of all; a place without one is left out."""

    def delete(self, group: str) -> None:
        raise NotImplementedError

    def alter_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        raise NotImplementedError

    def delete_offsets(self, group: str, *places: Place) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End whatever the adapter keeps open; most keep nothing."""
        return None
