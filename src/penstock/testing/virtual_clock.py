"""An event loop in virtual time: it never waits, and a seed decides the order in which ready callbacks run.

When callbacks are ready they run, in shuffled order; when none is, time jumps to the next timer; when there
is no timer either, nothing can ever happen again and `DeadlockError` says so. Threads, sockets and signals do
not exist here: whatever reaches for one fails instead of making the run depend on the machine.

A `Process` groups the tasks of one simulated program. Killing it means that none of its callbacks runs again,
not even a `finally`, just as after a kill -9 or a power cut. A paused one runs nothing until it is resumed, late for
everything, as after a SIGSTOP.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_EPOCH_MS = 1_700_000_000_000  # any moment does, as long as it is always the same one
_MANY_CANCELLED = 100
_MAX_STEPS = 10_000_000

_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set, but the main coroutine has not finished."""


class Process:
    """A simulated program: the tasks and callbacks that die together."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.killed = False
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """What would have run while it was paused."""
        self._loop = loop
        self._context = copy_context()
        self._context.run(_process.set, self)

    def create_task(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of this process; what it starts belongs to the process too."""
        return self._loop.create_task(coroutine, name=self.name, context=self._context.copy())

    def kill(self) -> None:
        """Never run anything of this process again. Its tasks stay pending until the run ends."""
        self.killed = True
        self._loop.run_held(self)

    def pause(self) -> None:
        """Run nothing of this process until it is resumed; time passes meanwhile."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._loop.run_held(self)


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic event loop.

    Attributes:
        steps: callbacks run so far; equal seeds give equal numbers.
        failures: what callbacks and forgotten tasks raised, as given to `call_exception_handler`.
    """

    _ready: "deque[asyncio.Handle]"
    _scheduled: "list[_Timer]"
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.steps = 0
        self.failures: list[dict[str, Any]] = []
        self._now = 0.0
        self._random = Random(seed)  # noqa: S311 - a replayable simulation, not a secret
        self._abandoned: list[asyncio.Handle] = []
        # Referenced until done: when the collector runs must not decide whether a lost task's `finally` does.
        self._tasks: dict[asyncio.Task[Any], Process | None] = {}
        self._prune_at = 64
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now

    def process(self, name: str) -> Process:
        return Process(self, name)

    def run_held(self, process: Process) -> None:
        """Let everything a paused process missed be ready now."""
        self._ready.extend(process.held)
        process.held = []

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        # The tasks of a killed process are still pending when the run ends, on purpose.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if len(self._tasks) >= self._prune_at:
            self._tasks = {task: process for task, process in self._tasks.items() if not task.done()}
            self._prune_at = max(64, 2 * len(self._tasks))
        context = options.get("context")
        self._tasks[task] = _process.get() if context is None else context.get(_process)
        return task

    def live_tasks(self) -> "list[asyncio.Task[Any]]":
        """Tasks that can still run, oldest first."""
        return [
            task for task, process in self._tasks.items() if not task.done() and (process is None or not process.killed)
        ]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(f"{func!r} wants a thread; in virtual time blocking work goes to the disk port")

    def _run_once(self) -> None:
        self._forget_cancelled_timers()
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise DeadlockError(f"nothing can run after {self.steps} steps: {self._waiting()}")
            self._now = max(self._now, self._scheduled[0]._when)
        while self._scheduled and self._scheduled[0]._when <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._ready.append(timer)
        batch = list(self._ready)
        self._ready.clear()
        self._random.shuffle(batch)
        for handle in batch:
            if handle._cancelled:
                continue
            process = handle._context.get(_process)  # type: ignore[attr-defined]
            if process is not None:
                if process.killed:
                    self._abandoned.append(handle)
                    continue
                if process.paused:
                    process.held.append(handle)
                    continue
            self.steps += 1
            handle._run()
        if self.steps > _MAX_STEPS:
            raise DeadlockError(f"no end after {self.steps} steps: {self._waiting()}")

    def _forget_cancelled_timers(self) -> None:
        if self._timer_cancelled_count > _MANY_CANCELLED:
            live = []
            for timer in self._scheduled:
                if timer._cancelled:
                    timer._scheduled = False
                else:
                    live.append(timer)
            heapq.heapify(live)
            self._scheduled = live
            self._timer_cancelled_count = 0
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False

    def _waiting(self) -> str:
        tasks = "; ".join(repr(task.get_coro()) for task in self.live_tasks())
        return f"at {self._now} s, waiting: {tasks or 'no task'}"

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing to do: there is no selector."""

    def _write_to_self(self) -> None:
        """Nothing to wake: the loop never sleeps."""


class _Timer(asyncio.TimerHandle):
    """For type checking only: the attributes of a timer that the loop itself uses."""

    _when: float
    _scheduled: bool


class VirtualClock:
    """The clock port of one simulated machine, on the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._offset_ms = 0

    def now_ms(self) -> int:
        return _EPOCH_MS + self._offset_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def jump_ms(self, by_ms: int) -> None:
        """Move the wall clock, forwards or back; timers and `monotonic` are untouched."""
        self._offset_ms += by_ms


def run_virtual(function: Callable[[], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run a coroutine function to its end in virtual time; equal seeds give equal runs.

    Raises:
        DeadlockError: when it can never finish.
        Exception: what it raised, or the first error of a callback that nobody handled.
    """
    loop = VirtualLoop(seed)
    try:
        result = loop.run_until_complete(function())
        for context in loop.failures:
            error = context.get("exception")
            if isinstance(error, Exception) and "handle" in context:
                raise error
        return result
    finally:
        _close(loop)


def _close(loop: VirtualLoop) -> None:
    """End what is still running, except the tasks of killed processes, which must not run again."""
    pending = loop.live_tasks()
    for task in pending:
        task.cancel()
    try:
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except DeadlockError:
        pass  # a task that waits for a killed process after its own cancellation; the run is over anyway
    finally:
        loop.close()
