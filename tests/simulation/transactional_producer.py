"""Transactional producers as clients have them: what they send, send again, send late, and when they give up.

Of the two versions of transactions, in the first the partitions are named before they are written to and the epoch
stays; in the second (KIP-890) writing adds them and every end raises the epoch. In the first a late end cannot be told
from one of the next transaction, so only producers of the second have theirs repeated late.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from random import Random
from typing import TypeVar

from penstock.engine.groups.offsets import NewOffset, Spot, TransactionalCommit
from penstock.engine.partition import Partition
from penstock.engine.transactions.requests import AddPartitions, EndRequest
from penstock.engine.transactions.transaction import BUMPED_AT_END, ProducerIdentity
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.storage.log.log import Appended
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.committed_offsets import Register
from tests.simulation.coordinators import OFFSETS, TRANSACTIONS, ask_leader, pause
from tests.simulation.log import until_committed
from tests.simulation.transactional_checks import Attempt, History, Life, Outcome, Place

T = TypeVar("T")
SPOT: Spot = ("tx", 0)
LONGEST_TIMEOUT_MS = 8000
_ACK_S = 3.5
_PATIENCE_S = 6.0
"""How long one step is tried before the transaction is aborted."""
_HURRY_S = 0.1
_FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
_ABORTABLE = (Code.TRANSACTION_ABORTABLE, Code.INVALID_TRANSACTION_STATE, Code.OUT_OF_ORDER_SEQUENCE)
_NOT_DONE = (Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOADING)
"""Errors that say for sure that nothing was done."""


class Over(Exception):
    """The producer cannot go on: it was fenced, or has died."""


class GiveUp(Exception):
    """The transaction has to be aborted."""


async def produce(broker: SimulatedBroker, place: Place, batch: bytes, transactional_id: str, *, add: bool) -> Appended:
    """As the produce request does it, for one partition and acks=all."""
    engine = broker.engine
    partition: Partition = engine.topics.partition(*place)
    partition.check_in_sync()
    view = memoryview(bytearray(batch))
    header = partition.check(view)
    begins = not partition.is_in_transaction(header)
    if begins or partition.must_wait(header):
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        admission = engine.transactions.admission(transactional_id, identity, (place,), add=add) if begins else None
        answer: asyncio.Future[Appended | PenstockError] = asyncio.get_running_loop().create_future()
        engine.opener.append(partition, view, header, answer.set_result, admission)
        appended = await answer
        if isinstance(appended, PenstockError):
            raise appended
    else:
        appended = partition.append_checked(view, header)
    await until_committed(partition, appended.last_offset)
    return appended


class Incarnation:
    """One producer, from its init until it is fenced or dies."""

    def __init__(
        self, owner: "TransactionalProducer", client: Client, version: int, identity: ProducerIdentity
    ) -> None:
        self.life = Life()
        self._owner = owner
        self._client = client
        self._random = client.random
        self._version = version
        self._identity = identity
        self._sequences: dict[Place, int] = {}
        self._must_bump = False
        self._hurries = False
        """Whether it gives up before an answer can be late: what it asked for may be done long after."""

    @property
    def _now(self) -> float:
        return self._client.world.loop.time()

    async def transact(self) -> None:
        """One transaction, to its end. Raises `Over`."""
        attempt = self._owner.begin(self.life)
        commits = self._random.random() < self._owner.commits
        self._hurries = self._random.random() < min(0.15 * self._owner.mischief, 0.9)
        try:
            await self._write(attempt)
        except GiveUp:
            commits = False
            self._must_bump = True
        await self._end(attempt, commits)
        if self._must_bump and self._version < BUMPED_AT_END:
            await self._init_again()
        self._must_bump = False

    # --- writing

    async def _write(self, attempt: Attempt) -> None:
        places = self._random.sample(self._owner.places, 2)
        if self._version < BUMPED_AT_END:
            await self._add(tuple(places))
        await asyncio.gather(*(self._send(attempt, place) for place in places))
        await self._think()
        if self._random.random() < 0.8:
            await self._commit_offset(attempt)
            attempt.has_offset = True
        for place in places:
            if self._random.random() < 0.3:
                await self._send(attempt, place)
        await self._think()
        if self._random.random() < 0.04:
            raise Over("died")

    async def _think(self) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.02, 0.3, 1.0)) * self._random.random())

    async def _send(self, attempt: Attempt, place: Place) -> None:
        sequence = self._sequences.get(place, 0)
        value = attempt.next_value(place)
        attempt.sent.append((place, value))
        batch = build_batch(
            [(None, value, [], self._client.now_ms)],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        add = self._version >= BUMPED_AT_END

        async def work(broker: SimulatedBroker) -> Appended:
            return await produce(broker, place, batch, attempt.transactional_id, add=add)

        await self._try(place, work, _ACK_S)
        self._sequences[place] = sequence + 1
        if self._random.random() < 0.1 * self._owner.mischief:
            self._owner.later(lambda client: ask_leader(client, place, work, _ACK_S))

    async def _add(self, places: tuple[Place, ...]) -> None:
        request = AddPartitions(self._owner.transactional_id, *self._identity, places)

        async def add(broker: SimulatedBroker) -> None:
            for error in (await broker.engine.transactions.add_partitions(request)).values():
                if error is not None:
                    raise error

        await self._try(TRANSACTIONS, add)

    async def _commit_offset(self, attempt: Attempt) -> None:
        group = self._owner.group
        if self._version < BUMPED_AT_END:

            async def add(broker: SimulatedBroker) -> None:
                await broker.engine.transactions.add_offsets(attempt.transactional_id, *self._identity, group)

            await self._try(TRANSACTIONS, add)
        verify_only = self._version < BUMPED_AT_END
        commit = TransactionalCommit(group, *self._identity, "", -1, None, {SPOT: NewOffset(attempt.number)})
        identity = self._identity

        async def work(broker: SimulatedBroker) -> None:
            check = await broker.engine.transactions.add_offsets(
                attempt.transactional_id, *identity, group, verify_only=verify_only
            )
            error = (await broker.engine.groups.commit_in_transaction(commit, check))[SPOT]
            if error is not None:
                raise error

        await self._try(OFFSETS, work, _ACK_S)
        if self._random.random() < 0.1 * self._owner.mischief and not verify_only:
            self._owner.later(lambda client: ask_leader(client, OFFSETS, work, _ACK_S))

    async def _try(self, place: Place, work: Callable[[SimulatedBroker], Awaitable[T]], timeout_s: float = 2.0) -> T:
        """Ask until it is done. Raises `GiveUp`, `Over`."""
        give_up_at = self._now + _PATIENCE_S * (0.5 + self._random.random())
        if self._hurries:
            give_up_at, timeout_s = self._now, _HURRY_S
        while True:
            try:
                return await ask_leader(self._client, place, work, timeout_s)
            except UNANSWERED:
                pass
            except PenstockError as error:
                self._look_at(error)
            if self._now > give_up_at:
                raise GiveUp
            await pause(self._client)

    def _look_at(self, error: PenstockError) -> None:
        if error.code in _FENCED:
            raise Over(str(error))
        if error.code in _ABORTABLE:
            raise GiveUp
        if not error.retriable and error.code is not Code.CORRUPT_LOG:
            self._client.world.violate(f"{self._owner.transactional_id}: refused: {error}")
            raise Over(str(error))

    # --- ending

    async def _end(self, attempt: Attempt, commits: bool) -> None:
        version = BUMPED_AT_END if self._version >= BUMPED_AT_END else 0
        request = EndRequest(self._owner.transactional_id, *self._identity, commits, version)

        async def end(broker: SimulatedBroker) -> ProducerIdentity:
            return await broker.engine.transactions.end(request)

        self._owner.ending(attempt, commits)
        if self._random.random() < 0.04:
            self._owner.later(lambda client: ask_leader(client, TRANSACTIONS, end), at_once=True)
            raise Over("died while it ended a transaction")
        self._identity = await self._end_until_told(attempt, end)
        self._owner.ended(attempt)
        if self._version >= BUMPED_AT_END:
            self._sequences.clear()
            for _ in range(self._random.choice((0, 0, 1, 2))):
                self._owner.later(lambda client: ask_leader(client, TRANSACTIONS, end))

    async def _end_until_told(
        self, attempt: Attempt, end: Callable[[SimulatedBroker], Awaitable[ProducerIdentity]]
    ) -> ProducerIdentity:
        is_open = False
        while True:
            try:
                return await ask_leader(self._client, TRANSACTIONS, end)
            except UNANSWERED:
                is_open = True
            except PenstockError as error:
                if not error.retriable:
                    if not is_open:
                        self._owner.refused(attempt)
                    raise Over(str(error)) from error
                is_open = is_open or error.code not in _NOT_DONE
            await pause(self._client)

    async def _init_again(self) -> None:
        """In the first version of transactions, whoever gave a batch up needs another epoch."""
        identity = self._identity

        async def init(broker: SimulatedBroker) -> ProducerIdentity:
            return await broker.engine.transactions.init(
                self._owner.transactional_id, self._owner.timeout_ms, *identity
            )

        try:
            self._identity = await self._try(TRANSACTIONS, init)
        except GiveUp:
            raise Over("cannot begin again") from None
        self._sequences.clear()


class TransactionalProducer:
    """All producers of one transactional id: one that works, and zombies that do not know they are.

    Args:
        places: partitions to write to.
        register: the offset of the group.
        versions: of transactions, that its producers may have.
        mischief: how much more often than usual they give up early, repeat what was done, and go on though replaced.
        commits: the share of transactions that they commit.
    """

    def __init__(
        self,
        client: Client,
        history: History,
        transactional_id: str,
        places: Sequence[Place],
        register: Register,
        versions: Sequence[int],
        mischief: float = 1.0,
        commits: float = 0.7,
    ) -> None:
        self.transactional_id = transactional_id
        self.group = f"group-{transactional_id}"
        self.places = places
        self._client = client
        self._random = client.random
        self._history = history
        self._register = register
        self._versions = versions
        self.mischief = mischief
        self.commits = commits
        self._version = self._random.choice(versions)
        self.timeout_ms = self._random.choice((2000, 4000, LONGEST_TIMEOUT_MS))
        self._numbers = count(1)
        self._lives: list[Life] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.fenced = 0

    async def run(self) -> None:
        current = await self._init()
        while current is not None and not self._client.world.is_over:
            if self._random.random() < 0.08 * self.mischief:
                self._spawn(self._haunt(current))
                await asyncio.sleep(self._random.random())
                current = await self._init()
                continue
            try:
                await current.transact()
                await asyncio.sleep(self._random.expovariate(3.0))
            except Over:
                self.fenced += 1
                await asyncio.sleep(self._random.choice((0.0, 0.3, 3.0)))
                current = await self._init()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _init(self) -> Incarnation | None:
        """Another producer with the id: those before it are zombies from now on."""
        if self._random.random() < 0.1:
            self._version = self._random.choice(self._versions)
        client = Client(self._client.world, Random(self._random.getrandbits(64)))

        async def init(broker: SimulatedBroker) -> ProducerIdentity:
            return await broker.engine.transactions.init(self.transactional_id, self.timeout_ms)

        while not client.world.is_over:
            try:
                identity = await ask_leader(client, TRANSACTIONS, init, 5.0)
            except UNANSWERED:
                await pause(client)
                continue
            except PenstockError as error:
                if not error.retriable and error.code is not Code.CORRUPT_LOG:
                    client.world.violate(f"{self.transactional_id}: init refused: {error}")
                await pause(client)
                continue
            now = client.world.loop.time()
            client.world.note(f"init {self.transactional_id} is {identity.producer_id}/{identity.producer_epoch}")
            for life in self._lives:
                life.replaced_at = min(life.replaced_at, now)
            made = Incarnation(self, client, self._version, identity)
            self._lives.append(made.life)
            return made
        return None

    async def _haunt(self, zombie: Incarnation) -> None:
        """Go on as if nobody had taken its place, until it is told."""
        for _ in range(3):
            if self.mischief > 1:
                await asyncio.sleep(self._random.random() * 2)  # and begin something new when they have been
            try:
                await zombie.transact()
            except Over:
                return

    # --- for incarnations

    def begin(self, life: Life) -> Attempt:
        attempt = Attempt(self.transactional_id, next(self._numbers), life)
        self._history.attempts[attempt.name] = attempt
        return attempt

    def ending(self, attempt: Attempt, commits: bool) -> None:
        world = self._client.world
        world.note(f"{'commit' if commits else 'abort'} {attempt.name} with {len(attempt.sent)} records")
        if not commits:
            attempt.outcome = Outcome.ABORTED
            return
        attempt.outcome, attempt.commit_asked_at = Outcome.UNKNOWN, world.loop.time()
        if attempt.has_offset:
            self._register.write(attempt.number, world.loop.time())

    def ended(self, attempt: Attempt) -> None:
        world = self._client.world
        attempt.ended_at = world.loop.time()
        world.note(f"ended {attempt.name}")
        if attempt.outcome is Outcome.UNKNOWN:
            attempt.outcome = Outcome.COMMITTED
            if attempt.has_offset:
                self._register.writes[attempt.number].acked_at = attempt.ended_at

    def refused(self, attempt: Attempt) -> None:
        """The end was refused, and was asked for only once."""
        self._client.world.note(f"refused {attempt.name}")
        if attempt.outcome is Outcome.UNKNOWN:
            attempt.outcome = Outcome.REFUSED
            if attempt.has_offset:
                self._register.writes[attempt.number].refused = True

    def later(self, work: Callable[[Client], Awaitable[object]], *, at_once: bool = False) -> None:
        """Have something repeated that was done, over another connection; whatever is answered is of no interest."""
        client = Client(self._client.world, Random(self._random.getrandbits(64)))
        delay_s = 0.0 if at_once else client.random.expovariate(1.5)

        async def repeat() -> None:
            await asyncio.sleep(delay_s)
            try:
                await work(client)
            except (*UNANSWERED, PenstockError):
                return

        self._spawn(repeat())

    def _spawn(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
