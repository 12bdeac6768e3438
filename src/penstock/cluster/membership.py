"""This broker's place in the cluster: its incarnation, its lease, and the record by which others find it.

`members/{id}` counts the starts of a broker; the number of the present start is its incarnation, its epoch wherever
it writes. Every change of `brokers/{id}` expects that counter as this start left it, so of two processes with one id
only the later start can register, and the other finds out.

A registration that vanishes (its lease ended during a pause, or a peer took this broker for dead) is made again with
the same incarnation and the same word about the stop before it: whether that was clean is about this start, and the
controller may not have heard it yet.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import orjson

from penstock.cluster import keys
from penstock.cluster.image import FEATURE_LEVEL, BrokerRecord, Served
from penstock.cluster.watcher import Watcher
from penstock.errors import StartupError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import Entry, LeaseLost, MetadataConflict, MetadataStore, MetadataUnavailable
from penstock.ports.randomness import Randomness

T = TypeVar("T")
log_ = get_logger("cluster")
_RETRY_S = 0.25
_TOLD_EVERY_S = 5.0
_GRACE_S = 2.0
"""How much longer than its time a lease may be seen: the store may have been without a leader itself."""


class NodeIdTaken(StartupError):
    """Another process is the broker with our id; going on, or starting, would make two of one."""


class Membership:
    """Registers this broker and keeps it registered. Listen for other brokers before `register`: they come at once.

    Args:
        me: where this broker is found; its incarnation and `clean` are decided here.
        probe: whether somebody listens at a host and port.
        ttl_s: how long the registration outlives the last word of this broker.
        prove: a record with what shows that it was written by a broker of this cluster.

    Attributes:
        incarnation: of this start; 0 before `register`.
        lease: what the registration is bound to, and whatever else shall vanish with this broker. It may change.
        clean: whether the stop before this start was a clean one.
    """

    def __init__(
        self,
        store: MetadataStore,
        watcher: Watcher,
        clock: Clock,
        randomness: Randomness,
        me: BrokerRecord,
        probe: Callable[[str, int], Awaitable[bool]],
        ttl_s: int = 4,
        prove: Callable[[BrokerRecord], BrokerRecord] = lambda me: me,
    ) -> None:
        self.incarnation = 0
        self.lease = 0
        self._store = store
        self._watcher = watcher
        self._image = watcher.image
        self._clock = clock
        self._randomness = randomness
        self._me = me
        self._probe = probe
        self._ttl_s = ttl_s
        self._prove = prove
        self._key = keys.broker_key(me.broker_id)
        self._member_key = keys.member_key(me.broker_id)
        self._member_revision = 0
        self._revision = 0
        """Of our record as we wrote it last."""
        self._held_until = 0.0
        self._trusted_until: dict[tuple[int, int], float] = {}
        """Until when each broker and incarnation that was suspected is not suspected again."""
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stopped = False
        watcher.listeners.append(self._on_changes)

    @property
    def clean(self) -> bool:
        return self._me.clean

    # --- coming

    def serve_at(self, served: Served) -> None:
        """Where clients find this broker; to be said before `register`."""
        self._me = replace(self._me, host=served.host, port=served.port, endpoints=dict(served.endpoints))

    async def register(self, clean_incarnation: int | None) -> None:
        """Take the next incarnation and show this broker to the others; waits while the store does not answer.

        Args:
            clean_incarnation: which start of this broker left its data directory by a clean stop, if one did.

        Raises:
            NodeIdTaken: another process is this broker, or becomes it at the same time.
        """
        await self._answered(self._vacate, f"whether node id {self._me.broker_id} is free")
        token = f"{self._randomness.getrandbits(64):016x}"
        await self._answered(lambda: self._begin(clean_incarnation, token), "the number of this start")
        await self._answered(self._settle, "the registration")
        log_.info("registered", node=self._me.broker_id, incarnation=self.incarnation, clean=self.clean)

    async def _answered(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        began = self._clock.monotonic()
        told_at = began - _TOLD_EVERY_S
        while True:
            try:
                return await ask()
            except MetadataUnavailable as error:
                now = self._clock.monotonic()
                if now - told_at >= _TOLD_EVERY_S:
                    told_at = now
                    log_.warning(
                        "metadata store does not answer",
                        store=self._watcher.name,
                        waiting_for=what,
                        waited_s=round(now - began, 1),
                        error=str(error),
                    )
            await asyncio.sleep(_RETRY_S)

    async def _vacate(self) -> None:
        """Return when no other process is this broker, as far as one can tell: before anything is changed."""
        deadline = self._clock.monotonic() + self._ttl_s + _GRACE_S
        while True:
            entry = await self._store.get(self._key)
            if entry is None:
                return
            other = BrokerRecord.decode(entry.value, entry.revision)
            where = (other.internal_host, other.internal_port)
            if where == (self._me.internal_host, self._me.internal_port):
                return  # we listen there ourselves, so the other one does not
            if not await self._probe(*where):
                return
            if self._clock.monotonic() >= deadline:
                raise NodeIdTaken(
                    f"node id {self._me.broker_id} is in use by {where[0]}:{where[1]}; stop that broker, or give this "
                    "one another id and data directory"
                )
            await asyncio.sleep(_RETRY_S)

    async def _begin(self, clean_incarnation: int | None, token: str) -> None:
        """Take the next incarnation. May be called again when the store did not say what became of it."""
        while True:
            entry = await self._store.get(self._member_key)
            fields = {"incarnation": 0} if entry is None else orjson.loads(entry.value)
            if entry is not None and fields.get("start") == token:
                return self._begun(fields["incarnation"], entry.revision)
            at = 0 if entry is None else entry.revision
            clean = entry is None or fields["incarnation"] == clean_incarnation
            incarnation = fields["incarnation"] + 1
            self._me = replace(self._me, incarnation=incarnation, clean=clean)
            value = orjson.dumps({"incarnation": incarnation, "start": token})
            try:
                revision = await self._store.transact(expect={self._member_key: at}, put={self._member_key: value})
            except MetadataConflict:
                continue
            return self._begun(incarnation, revision)

    def _begun(self, incarnation: int, member_revision: int) -> None:
        self.incarnation, self._member_revision = incarnation, member_revision
        self._me = self._prove(replace(self._me, level=FEATURE_LEVEL))

    async def _settle(self) -> None:
        """Make `brokers/{id}` say what it should, bound to a lease that holds. May be called at any time.

        Raises:
            NodeIdTaken: this start is not the last one.
        """
        async with self._changing:
            while not self._stopped:
                member = await self._store.get(self._member_key)
                entry = await self._store.get(self._key)
                if member is None or member.revision != self._member_revision:
                    raise self._taken(member, entry)
                wanted = self._me.encode()
                if self.lease and entry is not None and (entry.value, entry.revision) == (wanted, self._revision):
                    return
                try:
                    await self._put(wanted, 0 if entry is None else entry.revision)
                except (MetadataConflict, LeaseLost) as error:
                    if isinstance(error, LeaseLost):
                        self._lose_lease()
                    continue
                return

    async def _put(self, value: bytes, at: int) -> None:
        if not self.lease:
            sent = self._clock.monotonic()
            self.lease = await self._store.grant(self._ttl_s)
            self._held_until = sent + self._ttl_s
        self._revision = await self._store.transact(
            expect={self._member_key: self._member_revision, self._key: at},
            put_leased={self._key: value},
            lease=self.lease,
        )

    def _lose_lease(self) -> None:
        self.lease, self._held_until = 0, 0.0

    def _taken(self, member: Entry | None, entry: Entry | None) -> NodeIdTaken:
        now = orjson.loads(member.value)["incarnation"] if member is not None else 0
        who = "another process"
        if entry is not None:
            other = BrokerRecord.decode(entry.value, entry.revision)
            if other.incarnation != self.incarnation:
                who = f"the process at {other.internal_host}:{other.internal_port}"
        return NodeIdTaken(
            f"node id {self._me.broker_id} was taken by {who}: this is start {self.incarnation}, the last one is "
            f"{now}; stop one of the two, or give it another id and data directory"
        )

    # --- staying

    async def run(self) -> None:
        """Keep the lease, and the registration while it holds; ends after `stop`. Raises `NodeIdTaken`."""
        pause_s = self._ttl_s / 3
        while not self._stopped:
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            pause_s = self._ttl_s / 3
            try:
                await self._beat()
            except (MetadataUnavailable, TimeoutError) as error:
                pause_s = min(pause_s, _RETRY_S)
                log_.limited("lease", 0.2).warning(
                    "lease not kept alive", store=self._watcher.name, holds=self.holds(), error=str(error)
                )

    async def _beat(self) -> None:
        lease, sent = self.lease, self._clock.monotonic()
        if lease:
            try:
                async with asyncio.timeout(self._ttl_s / 3):  # a call that hangs would cost the lease
                    await self._store.keep_alive(lease)
            except LeaseLost:
                log_.warning("lease lost", node=self._me.broker_id, incarnation=self.incarnation)
                if lease == self.lease:
                    self._lose_lease()
            else:
                if lease == self.lease:
                    self._held_until = sent + self._ttl_s
        if not self.lease or not self._is_shown():
            await self._settle()

    def _is_shown(self) -> bool:
        shown = self._image.brokers.get(self._me.broker_id)
        return shown is not None and shown == replace(self._me, revision=self._revision)

    def _on_changes(self, changed: list[str]) -> None:
        if self.incarnation and self._key in changed and not self._is_shown():
            self._wake.set()

    def holds(self) -> bool:
        """Whether the lease is known to hold at this moment: the store confirmed it less than its time ago."""
        return self._clock.monotonic() < self._held_until

    def left_s(self) -> float:
        """How long it is known to hold from now on."""
        return max(0.0, self._held_until - self._clock.monotonic())

    async def suspect(self, broker_id: int, incarnation: int | None = None) -> None:
        """Take a broker out that does not listen any more, rather than wait for its lease; it may register again.

        Nothing happens if the image is not up to date about it, or the store does not answer.

        Args:
            incarnation: the start of it that is suspected, if known; a later one has come since.
        """
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker_id == self._me.broker_id or incarnation not in (None, broker.incarnation):
            return
        now = self._clock.monotonic()
        if now < self._trusted_until.get((broker_id, broker.incarnation), 0.0):
            return  # it registered again after the last time: something refuses in its name
        self._trusted_until[broker_id, broker.incarnation] = now + self._ttl_s
        expect = {keys.broker_key(broker_id): broker.revision}
        controller = self._image.controller
        if controller is not None and controller.broker_id == broker_id:
            expect[keys.CONTROLLER] = controller.revision
        try:
            await self._store.transact(expect=expect, delete=list(expect))
        except (MetadataConflict, MetadataUnavailable) as error:
            log_.info("suspected broker left in place", node=broker_id, why=str(error))
        else:
            log_.warning("broker does not listen any more; taken out", node=broker_id, incarnation=broker.incarnation)

    # --- going

    async def leave(self, deadline_s: float = 30.0) -> bool:
        """Say that this broker is about to stop; returns when it leads nothing that another broker could lead.

        Returns:
            False when the deadline came first.
        """
        until = self._clock.monotonic() + deadline_s
        self._me = replace(self._me, leaving=True)
        try:
            async with asyncio.timeout(deadline_s):
                await self._answered(self._settle, "saying that this broker leaves")
        except TimeoutError:
            return False
        return await self._watcher.until(self._leads_nothing, max(0.0, until - self._clock.monotonic()))

    def _leads_nothing(self) -> bool:
        me = self._me.broker_id
        stay = {broker_id for broker_id, broker in self._image.live().items() if not broker.leaving} - {me}
        return not any(
            state.leader == me and not stay.isdisjoint(state.isr) for _, _, state in self._image.partitions()
        )

    async def stop(self) -> None:
        """Give the lease back, so that nobody waits for its end; `run` ends."""
        self._stopped = True
        self._wake.set()
        async with self._changing:
            lease = self.lease
            self._lose_lease()
            try:
                if lease:
                    async with asyncio.timeout(self._ttl_s):
                        await self._store.revoke(lease)
            except (MetadataUnavailable, TimeoutError) as error:
                log_.warning("lease left to end by itself", store=self._watcher.name, error=str(error))
