"""Keeps the image of the cluster up to date: one watch of everything, and a look at everything every few seconds.

A watch can break off, and some have been known to lose events without saying so. So the store is looked at again from
time to time, and when the watch stays silent after that has found news, another watch is begun.

The store's revision never falls. If it does, an old copy of the store was put back, and what brokers have done since
is unknown to it: going on would undo decisions that records were acknowledged by, so the broker stops.
"""

import asyncio
from collections.abc import Callable

from penstock.cluster import keys
from penstock.cluster.image import Image
from penstock.errors import StartupError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import MetadataStore, MetadataUnavailable, WatchLost

log_ = get_logger("cluster")
ACCEPT_OLDER = "--set cluster.accept_older_store=true"
"""The option of `penstock serve` by which an operator goes on from an old copy of the store."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_TOLD_EVERY_S = 5.0
_LATE_S = 1.0
"""How far a watch may be behind a look."""


class OlderStore(StartupError):
    """The store is at a lower revision than it was known to have reached."""

    def __init__(self, name: str, found: int, known: int) -> None:
        super().__init__(
            f"{name} is at revision {found}, but this broker has seen it at {known}: an old copy of it was put back, "
            "and what was decided since is missing from it. Stop every broker and bring the newer copy back; if it is "
            f"lost, start them with {ACCEPT_OLDER} to go on from the old one, and records acknowledged since may go"
        )
        self.found, self.known = found, known


class Watcher:
    """The image's only writer.

    Args:
        fail: called once when an old copy of the store was put back.
        relist_s: how often the store is looked at besides being watched.
        name: of the store, for people.
        remembered: the highest revision an earlier start has noted.

    Attributes:
        listeners: called with the changed keys after each change of the image.
    """

    def __init__(
        self,
        store: MetadataStore,
        image: Image,
        clock: Clock,
        fail: Callable[[BaseException], None],
        relist_s: float = 10.0,
        *,
        name: str = "the metadata store",
        remembered: int = 0,
    ) -> None:
        self.image = image
        self.name = name
        self.listeners: list[Callable[[list[str]], None]] = []
        self._store = store
        self._clock = clock
        self._fail = fail
        self._relist_s = relist_s
        self._remembered = remembered
        self._looking = asyncio.Lock()
        self._looks_begun = 0
        self._looks_ended = 0
        self._last_error: MetadataUnavailable | None = None
        self._news = asyncio.Event()
        self.confirmed_at = clock.monotonic()
        """When the store has last told how things are."""
        self._failed = False
        self._unheard = False
        """A look has found news, and the watch has told nothing since."""

    def remember(self, revision: int) -> None:
        """The highest revision an earlier start has noted; to be said before `start`."""
        self._remembered = revision

    async def start(self) -> None:
        """Know how things are; waits while the store does not answer. Raises `OlderStore`."""
        try:
            await self._look_until_answered("the first look at the cluster")
        except OlderStore:
            self._failed = True
            raise

    async def run(self) -> None:
        """Follow the store until cancelled, or until `fail` was called."""
        short_lived = 0
        while not self._failed:
            began = self._clock.monotonic()
            try:
                await self._follow()
            except OlderStore:
                return
            short_lived = 0 if self._clock.monotonic() - began > _LONGEST_PAUSE_S else short_lived + 1
            if short_lived:
                await asyncio.sleep(_pause_s(short_lived - 1))
            try:
                await self._look_until_answered("a look at the cluster after the watch broke off")
            except OlderStore:
                return

    async def refresh(self) -> None:
        """Return when the image is at least as new as the store was at this call.

        Those who call at the same time share one look, which begins after they have called.

        Raises:
            MetadataUnavailable: the store did not answer.
            OlderStore: an old copy of it was put back; `fail` has been called.
        """
        wanted = self._looks_begun + 1
        async with self._looking:
            if self._looks_ended < wanted:
                await self._look()
            elif self._last_error is not None:
                raise MetadataUnavailable(str(self._last_error)) from self._last_error

    async def until(self, met: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until a condition holds, which is asked again after each change and each `wake`; False: it never did."""
        try:
            async with asyncio.timeout(deadline_s):
                while not met():
                    await self._news.wait()
        except TimeoutError:
            return met()
        return True

    def wake(self) -> None:
        """Have every `until` ask again: something besides the image has changed that a condition may look at."""
        self._news.set()
        self._news = asyncio.Event()

    async def _look_until_answered(self, what: str) -> None:
        failures = 0
        told_at = began = self._clock.monotonic()
        while True:
            try:
                return await self.refresh()
            except MetadataUnavailable as error:
                now = self._clock.monotonic()
                if failures == 0 or now - told_at >= _TOLD_EVERY_S:
                    told_at = now
                    log_.warning(
                        "metadata store does not answer",
                        store=self.name,
                        waiting_for=what,
                        waited_s=round(now - began, 1),
                        error=str(error),
                    )
            await asyncio.sleep(_pause_s(failures))
            failures += 1

    async def _look(self) -> None:
        self._looks_begun += 1
        number = self._looks_begun
        known = max(self.image.revision, self._remembered)  # as of now: a watch may overtake the look while it is taken
        self._last_error = None
        try:
            snapshot = await self._store.snapshot(keys.EVERYTHING)
        except MetadataUnavailable as error:
            self._looks_ended, self._last_error = number, error
            raise
        if snapshot.revision < known:
            older = OlderStore(self.name, snapshot.revision, known)
            if self.image.revision and not self._failed:  # at a start whoever starts is told
                self._failed = True
                self._fail(older)
            raise older
        changed = self.image.replace(snapshot)
        self.confirmed_at = self._clock.monotonic()
        self._looks_ended = number
        self._unheard = self._unheard or bool(changed)
        self._applied(changed)

    async def _follow(self) -> None:
        """Watch, and look again every so often, until the watch breaks off or turns out to be behind."""
        self._unheard = False
        watching = asyncio.get_running_loop().create_task(self._watch(), name="watch the metadata store")
        try:
            while True:
                await asyncio.wait({watching}, timeout=self._relist_s)
                if watching.done():
                    return watching.result()
                try:
                    await self.refresh()
                except MetadataUnavailable as error:
                    log_.limited("look").warning("metadata store does not answer", store=self.name, error=str(error))
                    continue
                if self._unheard:
                    await asyncio.wait({watching}, timeout=_LATE_S)
                    if self._unheard and not watching.done():
                        log_.warning("watch tells nothing of what has changed; begun again", store=self.name)
                        return None
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _watch(self) -> None:
        try:
            async for changes in self._store.watch(keys.EVERYTHING, self.image.revision):
                self._unheard = False
                self._applied(self.image.apply(changes))
        except (WatchLost, MetadataUnavailable) as error:
            log_.limited("watch").info("watch broke off", store=self.name, revision=self.image.revision, why=str(error))

    def _applied(self, changed: list[str]) -> None:
        if changed:
            for listener in self.listeners:
                listener(changed)
            self.wake()


def _pause_s(failures: int) -> float:
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures, 10))
