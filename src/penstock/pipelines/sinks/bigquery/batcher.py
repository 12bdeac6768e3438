"""When what has gathered is sent: at so many rows, at so many bytes, or when the oldest has waited long enough."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
_AHEAD: Final = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold, and how many are under way at once."""

    rows: int
    size_bytes: int
    wait_s: float
    at_once: int


class Batcher(Generic[T]):
    """Gathers items until a limit is reached. Nothing passes by itself: the owner asks `due`."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._items: list[T] = []
        self._rows = 0
        self._size_bytes = 0
        self._since = 0.0

    @property
    def room(self) -> int:
        """How many more rows make it full; never 0."""
        return self._limits.rows - self._rows

    def add(self, item: T, rows: int, size_bytes: int) -> Iterator[list[T]]:
        """Takes an item; what is full comes out. An item that does not fit any more opens the next batch."""
        if self._items and (
            self._rows + rows > self._limits.rows or self._size_bytes + size_bytes > self._limits.size_bytes
        ):
            yield self._take()
        if not self._items:
            self._since = self._clock()
        self._items.append(item)
        self._rows += rows
        self._size_bytes += size_bytes
        if self._rows >= self._limits.rows or self._size_bytes >= self._limits.size_bytes:
            yield self._take()

    def left_s(self) -> float | None:
        """Seconds until what is there has waited long enough; None: nothing is there."""
        return max(0.0, self._since + self._limits.wait_s - self._clock()) if self._items else None

    def due(self) -> Iterator[list[T]]:
        """What has waited long enough."""
        if self.left_s() == 0.0:
            yield self._take()

    def flush(self) -> Iterator[list[T]]:
        """What is left."""
        if self._items:
            yield self._take()

    def _take(self) -> list[T]:
        taken, self._items, self._rows, self._size_bytes = self._items, [], 0, 0
        return taken


class _End(NamedTuple):
    error: BaseException | None


def timed(items: Iterator[T], left_s: Callable[[], float | None]) -> Iterator[T | None]:
    """The items as they come, and None whenever `left_s` has passed without one.

    A thread reads ahead: Spark's next rows may take as long as the steps before them, and what has gathered must not
    wait for those.
    """
    ahead: queue.Queue[T | _End] = queue.Queue(_AHEAD)
    over = threading.Event()

    def offer(item: T | _End) -> bool:
        while not over.is_set():
            try:
                ahead.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if not offer(item):
                    return
        except BaseException as raised:  # noqa: BLE001 - it is raised where the rows are used
            error = raised
        offer(_End(error))

    threading.Thread(target=read, name="rows of a task", daemon=True).start()
    try:
        while True:
            try:
                item = ahead.get(timeout=left_s())
            except queue.Empty:
                yield None
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        over.set()
