"""Keeps the rules of one broker as they are in the metadata store: a watch, and a look every few seconds.

    watch says that sec/rev changed ─┐
    a look, each 10 s ───────────────┼─> sec/rev is another? ─> all of sec/ ─> built in a thread ─> swapped at once
    somebody here made a change ─────┘

One load at a time, each begun after what asked for it: so an older state never replaces a newer one. While the store is
away, or has what this release cannot read, the last known rules stay in force. Before there are any, nobody may do
anything.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, ParamSpec, Protocol, TypeVar

from penstock.engine.access import Access
from penstock.errors import PenstockError, StartupError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import Entry, MetadataStore, MetadataUnavailable, WatchLost
from penstock.security import paths
from penstock.security.directory import Directory, Unreadable
from penstock.security.methods import SuperUsers
from penstock.security.modes import Mode, Refusals, make_policy
from penstock.security.ruleset import Ruleset

P = ParamSpec("P")
T = TypeVar("T")

log_ = get_logger("security")
RELIST_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_AWAY = (MetadataUnavailable, PenstockError)  # the second one is what a store says that is stopped


class InThread(Protocol):
    """Runs a function off the event loop; `Disk.run` is one."""

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...


async def in_pool(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread of asyncio's own pool."""
    return await asyncio.to_thread(function, *args, **kwargs)


class Loader:
    """See the module's text.

    Args:
        access: whose policy this is the only writer of, from now on.
        in_thread: where the rules are built; None: in a thread of asyncio's pool.

    Attributes:
        directory: what is in force; None before the first load.
        refusals: what `watch` has let pass.
        problem: why newer rules are not in force; empty if they are.
        listeners: called after each swap.
    """

    def __init__(
        self,
        store: MetadataStore,
        access: Access,
        clock: Clock,
        mode: Mode,
        *,
        supers: SuperUsers | None = None,
        in_thread: InThread | None = None,
        relist_s: float = RELIST_S,
    ) -> None:
        self.store = store
        self.access = access
        self.directory: Directory | None = None
        self.refusals = Refusals()
        self.problem = ""
        self.listeners: list[Callable[[Directory], None]] = []
        self._clock = clock
        self._mode = mode
        self._supers = supers or SuperUsers()
        self._in_thread: InThread = in_thread or in_pool
        self._relist_s = relist_s
        self._rules = Ruleset(1, ())
        self._confirmed_at = clock.monotonic()
        self._watched_from = 0
        self._loading = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        self._failure: Exception | None = None
        self._put_in_force()

    @property
    def rules(self) -> Ruleset:
        """The rules themselves, whatever the mode: for who explains them."""
        return self._rules

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self._put_in_force()

    def age_s(self) -> float:
        """How long ago the store has last said that the rules in force are those it has."""
        return self._clock.monotonic() - self._confirmed_at

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return when the rules are in force; waits for the store. Raises `StartupError` if they cannot be read.

        Args:
            prepare: has something there that everybody needs; it is called until it does not fail.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if prepare is not None:
                    await prepare()
                return await self.refresh()
            except Unreadable as error:
                raise StartupError(
                    f"{error}. Start the release that wrote it, or remove it with the broker stopped"
                ) from error
            except _AWAY as error:
                log_.limited("start").warning("rules cannot be loaded yet", error=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            await self._follow()
            await asyncio.sleep(_LONGEST_PAUSE_S if self.problem else _FIRST_PAUSE_S)

    async def refresh(self) -> None:
        """Return when the rules in force are at least as new as those the store had at this call.

        Those who call at the same time share one load, which begins after they have called.

        Raises:
            MetadataUnavailable: the store did not answer.
            PenstockError: it has stopped.
            Unreadable: it has something that this release does not know; the last rules stay.
        """
        wanted = self._begun + 1
        async with self._loading:
            if self._ended < wanted:
                await self._load()
            elif self._failure is not None:
                raise self._failure

    async def _load(self) -> None:
        self._begun += 1
        number = self._begun
        self._failure = None
        try:
            await self._load_news()
        except (*_AWAY, Unreadable) as error:
            self.problem, self._failure, self._ended = str(error), error, number
            raise
        self._ended = number  # not where it was cancelled: those who share it load anew

    async def _load_news(self) -> None:
        began = self._clock.monotonic()
        known = self.directory
        snapshot = await self.store.snapshot(paths.REVISION)
        if known is None or known.seen != (snapshot.entries[0].revision if snapshot.entries else 0):
            snapshot = await self.store.snapshot(paths.SECURITY)
            number = self._rules.revision + 1
            directory, rules = await self._in_thread(_build, snapshot.entries, self._supers, number)
            self.directory, self._rules = directory, rules
            self._put_in_force()
            for listener in self.listeners:
                listener(directory)
        self._watched_from = snapshot.revision
        self.problem = ""
        self._confirmed_at = began

    def _put_in_force(self) -> None:
        self.access.policy = make_policy(self._mode, self._rules, self.refusals)

    async def _follow(self) -> None:
        """Watch, and look every so often, until the watch breaks off or turns out to be behind."""
        watching = asyncio.get_running_loop().create_task(self._watch(), name="watch the rules")
        try:
            while True:
                await asyncio.wait({watching}, timeout=self._relist_s)
                before = self.directory
                await self._attempt()
                if watching.done():
                    return watching.result()
                if before is not self.directory:  # the watch should have told; another one will
                    return None
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _watch(self) -> None:
        with suppress(WatchLost, *_AWAY):
            async for changes in self.store.watch(paths.SECURITY, self._watched_from):
                if any(change.key == paths.REVISION for change in changes):
                    await self._attempt()

    async def _attempt(self) -> None:
        try:
            await self.refresh()
        except (*_AWAY, Unreadable) as error:
            log_.limited("load").warning(
                "the last known rules stay in force", error=str(error), age_s=round(self.age_s(), 1)
            )


def _build(entries: list[Entry], supers: SuperUsers, revision: int) -> tuple[Directory, Ruleset]:
    directory = Directory.decode(entries)
    return directory, directory.make_ruleset(supers, revision)
