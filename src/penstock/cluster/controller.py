"""The broker that elects: whoever creates the key `controller`, for as long as the key is there.

Every broker runs one of these. Most of them wait for the key to vanish, which is bound to the lease of the broker that
made it. Its revision is the epoch of a term (`cluster/term.py`): each change made in a term expects it, so one who
lost the key without knowing changes nothing any more.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.cluster import keys
from penstock.cluster.fenced_store import Deposed
from penstock.cluster.image import ControllerRecord, Image
from penstock.cluster.term import ControllerSettings, Term, TopicRules
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import LeaseLost, MetadataConflict, MetadataStore, MetadataUnavailable

__all__ = ["Controller", "ControllerSettings"]
log_ = get_logger("cluster")


class Controller:
    """Runs until cancelled. Call `wake` whenever the image has changed.

    Args:
        me: this broker's id, its incarnation, and the lease its registration is bound to, 0 while there is none.
        topic_rules: how many of so many replicas must be in sync for a topic's records to be acknowledged, and whether
            they are synced before that.
    """

    def __init__(
        self,
        store: MetadataStore,
        image: Image,
        clock: Clock,
        me: Callable[[], tuple[int, int, int]],
        topic_rules: TopicRules,
        settings: ControllerSettings | None = None,
    ) -> None:
        self._store = store
        self._image = image
        self._clock = clock
        self._me = me
        self._topic_rules = topic_rules
        self._settings = settings or ControllerSettings()
        self._woken = asyncio.Event()
        self._term: Term | None = None
        self._lost = 0
        """The epoch of the last term that was found to be over before the image said so."""

    @property
    def epoch(self) -> int:
        """Of the present term; 0: this broker is not the controller, as far as it knows."""
        return self._term.epoch if self._term is not None else 0

    def wake(self) -> None:
        """There is news."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            epoch = await self._campaign()
            self._term = Term(self._store, self._image, self._clock, self._topic_rules, self._settings, epoch)
            log_.info("this broker is the controller", epoch=epoch)
            try:
                await self._govern(self._term)
            finally:
                self._term = None
            log_.info("this broker is the controller no more", epoch=epoch)

    async def _campaign(self) -> int:
        """Wait until the image names this broker; the epoch."""
        while True:
            self._woken.clear()
            if epoch := self._won():
                return epoch
            try:
                await self._stand()
            except MetadataUnavailable as error:
                log_.limited("stand").info("cannot stand for controller", error=str(error))
                await asyncio.sleep(self._settings.back_off_s)
            else:
                await self._wait(self._settings.look_again_s)

    def _won(self) -> int:
        broker_id, incarnation, _ = self._me()
        seen = self._image.controller
        if seen is None or (seen.broker_id, seen.incarnation) != (broker_id, incarnation):
            return 0
        return seen.revision if seen.revision > self._lost else 0

    async def _stand(self) -> None:
        """Create the key if nobody has it. Whether that worked is seen in the image."""
        broker_id, incarnation, lease = self._me()
        seen = self._image.controller
        # The key of an earlier start of this very broker is in the way until its lease ends; nobody serves it.
        # A stranger's is taken from it: what it decides is its own.
        is_vacant = (
            seen is None
            or (seen.broker_id == broker_id and seen.incarnation < incarnation)
            or seen.broker_id in self._image.strangers
        )
        if not lease or not is_vacant:
            return
        with suppress(MetadataConflict, LeaseLost):  # somebody was quicker, or we are about to register again
            await self._store.transact(
                expect={keys.CONTROLLER: 0 if seen is None else seen.revision},
                put_leased={keys.CONTROLLER: ControllerRecord(broker_id, incarnation).encode()},
                lease=lease,
            )

    async def _govern(self, term: Term) -> None:
        while term.is_held:
            self._woken.clear()
            try:
                rest_s = await term.look()
            except Deposed:
                self._lost = term.epoch
                return
            except MetadataUnavailable as error:
                log_.limited("govern").warning("metadata store does not answer the controller", error=str(error))
                await asyncio.sleep(self._settings.back_off_s)
            else:
                await self._wait(rest_s)

    async def _wait(self, timeout_s: float) -> None:
        """Until there is news; at once if some came since the last look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
