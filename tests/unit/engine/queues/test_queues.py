"""Queues on a broker of its own, on a simulated disk: leased, settled, buried, and the same after a crash."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.simulated_broker import Broker, batch_of, produce, running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.queues.answers import Want
from penstock.engine.queues.headers import ATTEMPTS, OFFSET, REASON
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.reading import Cursor, Message
from penstock.errors import Code, PenstockError
from penstock.storage.log.copied import append_copied

ACK, NACK = Verdict(VerdictKind.ACK), Verdict(VerdictKind.NACK, 0)
RELEASE, REJECT = Verdict(VerdictKind.RELEASE), Verdict(VerdictKind.REJECT, reason="broken")
SMALL = 1 << 20


class Reader:
    """One consumer of queue `q`."""

    def __init__(self, broker: Broker, consumer: str = "c", group: str = "q") -> None:
        self.engine = broker.engine
        self.partition = broker.partition("q")
        self.consumer = consumer
        self.group = group

    async def receive(self, most: int = 100, wait_s: float = 0, **wanted: object) -> list[Delivery]:
        want = Want(self.group, self.consumer, most, **wanted)  # type: ignore[arg-type]
        return await self.engine.receiving.receive(self.partition, want, SMALL, wait_s)

    async def settle(self, verdict: Verdict, *deliveries: Delivery) -> None:
        for each in deliveries:
            change = Change(each.message.offset, each.message.offset, verdict)
            await self.engine.queues.settle(self.partition, self.group, Receipt(each.lease_id), [change])


async def begun(broker: Broker, **settings: str) -> Reader:
    topic = await broker.engine.create_topic("q", 1)
    await broker.engine.alter_queues(topic, lambda queues: {**queues, "q": settings})
    return Reader(broker)


async def send(reader: Reader, *values: bytes) -> None:
    await produce(reader.partition, batch_of(list(values), reader.engine.clock))  # type: ignore[arg-type]


def values(deliveries: Sequence[Delivery]) -> list[bytes | None]:
    return [each.message.value for each in deliveries]


@virtual
async def test_what_is_acknowledged_is_not_delivered_again() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b", b"c")
        first = await reader.receive()
        assert values(first) == [b"a", b"b", b"c"]
        assert await reader.receive() == []
        await reader.settle(ACK, first[1])
        await reader.settle(RELEASE, first[0], first[2])
        again = await reader.receive()
        assert values(again) == [b"a", b"c"]
        assert [each.deliveries for each in again] == [2, 2]
        with pytest.raises(PenstockError) as refused:
            await reader.settle(ACK, first[0])
        assert refused.value.code is Code.STALE_RECEIPT


@virtual
async def test_a_queue_is_there_before_anybody_comes_for_it() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b", b"c")
        queues = broker.engine.queues
        assert (await queues.figures(reader.partition, "q")).ready == 3
        assert (await queues.whereabouts(reader.partition, "q", 1)).deliveries == 0
        await queues.delete(reader.partition, "q")
        assert await queues.purge(reader.partition, "q", 2) == 2
        with pytest.raises(PenstockError) as refused:
            await queues.figures(reader.partition, "others")
        assert refused.value.code is Code.UNKNOWN_QUEUE


@virtual
async def test_a_lease_ends_and_what_was_leased_comes_again() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, visibility="2s", backoff="none")
        await send(reader, b"a")
        assert values(await reader.receive()) == [b"a"]
        (again,) = await reader.receive(wait_s=10)
        assert (again.deliveries, again.attempts) == (2, 1)
        assert again.deadline > broker.clock.now_ms()


@virtual
async def test_waiting_ends_with_the_first_message() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        waiting = asyncio.ensure_future(reader.receive(wait_s=20))
        await asyncio.sleep(1)
        assert not waiting.done()
        await send(reader, b"a")
        assert values(await waiting) == [b"a"]


@virtual
async def test_what_failed_three_times_becomes_a_dead_letter() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, backoff="none")
        await send(reader, b"a", b"b")
        for _ in range(3):
            (a,) = await reader.receive(1)
            assert a.message.value == b"a"
            await reader.settle(NACK, a)
        (letter,) = await letters(broker)
        assert letter.value == b"a"
        headers = dict(letter.headers)
        assert (headers[REASON], headers[OFFSET], headers[ATTEMPTS]) == (b"attempts", b"0", b"3")
        assert values(await reader.receive()) == [b"b"]


@virtual
async def test_a_rejected_message_is_a_dead_letter_at_once_and_once_after_a_crash() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    reader = await begun(broker)
    await send(reader, b"a", b"b")
    a, b = await reader.receive()
    await reader.settle(REJECT, a)
    assert [each.value for each in await letters(broker)] == [b"a"]
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        reader = Reader(broker)
        assert [each.value for each in await letters(broker)] == [b"a"]
        assert await reader.receive() == []
        await reader.settle(ACK, b)  # the receipt is as good as before
        figures = await broker.engine.queues.figures(reader.partition, "q")
        assert (figures.start, figures.ready, figures.leased, figures.dying) == (2, 0, 0, 0)


async def letters(broker: Broker, wait_s: float = 5) -> list[Message]:
    deadline = asyncio.get_running_loop().time() + wait_s
    while broker.engine.topics.get("dlq.q") is None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    found = await Cursor(broker.partition("dlq.q"), 0).records(SMALL, wait_s)
    await asyncio.sleep(0.1)
    return found


@virtual
async def test_what_is_settled_after_a_crash_is_let_go_of() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    reader = await begun(broker)
    await send(reader, b"a", b"b", b"c")
    a, b, c = await reader.receive()
    await reader.settle(ACK, b)
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as again:
        reader = Reader(again)
        await reader.settle(ACK, a, c)
        figures = await again.engine.queues.figures(reader.partition, "q")
        assert (figures.start, figures.next, figures.settled_beyond) == (3, 3, 0)


@virtual
async def test_retention_spares_what_is_not_settled() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await broker.engine.queues.open(reader.partition, "q")
        log = reader.partition.leading()
        assert [floor() for floor in log.floors] == [0]
        await send(reader, b"a", b"b", b"c")
        deliveries = await reader.receive()
        await reader.settle(ACK, *deliveries[:2])
        assert [floor() for floor in log.floors] == [2]


@virtual
async def test_a_ledger_is_saved_into_its_log_and_begins_there() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    reader = await begun(broker)
    for _ in range(60):
        await send(reader, *[b"%d" % number for number in range(50)])
    kept = 0
    while deliveries := await reader.receive(50):
        await reader.settle(ACK, *deliveries[1:])
        kept += 1
    ledger = reader.partition.attached[0]
    assert ledger.leading().log_start > 0
    await broker.stop()
    machine.disk = machine.disk.abandon()
    async with running(machine.broker()) as broker:
        reader = Reader(broker)
        figures = await broker.engine.queues.figures(reader.partition, "q")
        assert (figures.leased, figures.ready) == (kept, 0)
        shard = broker.engine.queues.shards.of(reader.partition)
        assert shard.replayed < 3000


@virtual
async def test_what_a_leader_wrote_who_could_say_nothing_is_nobodys() -> None:
    """It led after what was acknowledged had been lost, appended, and died before its first word in the ledger."""
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b", b"c")
        await reader.settle(ACK, *await reader.receive())
        partition, queues = reader.partition, broker.engine.queues
        shard = queues.shards.of(partition)
        said = (await shard.machine()).epoch
        partition.leading().state.epochs.note(said + 1, 1)
        partition.leading().state.epochs.note(said + 2, 3)
        ledger = shard.partition.leading()
        ledger.state.epochs.note(said + 2, ledger.end_offset)
        shard.partition.leader_epoch = said + 2
        (await shard.machine()).has_begun = False
        shard.step(lambda machine, now: Outcome())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await queues.figures(partition, "q")).ready == 2


@virtual
async def test_a_hole_in_the_log_is_passed_over_at_once() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a")
        batch = bytearray(batch_of([b"b"], broker.clock, leader_epoch=reader.partition.leader_epoch))
        batch[:8] = (50_000).to_bytes(8, "big")  # as it comes from a leader whose log was thinned
        append_copied(reader.partition.leading(), memoryview(batch))
        await send(reader, b"c")
        assert values(await reader.receive(1)) == [b"a"]
        ledger = reader.partition.attached[0].leading()
        before = ledger.end_offset
        assert values(await reader.receive(1)) == [b"b"]
        assert ledger.end_offset - before < 10


@pytest.mark.parametrize("on_full", ["reject", "drop-oldest"])
def test_a_batch_that_is_there_already_needs_no_room(on_full: str) -> None:
    """Its producer sends it again, as the answer was lost."""

    @virtual
    async def told() -> None:
        async with running(Machine().broker()) as broker:
            reader = await begun(broker, **{"max-size": "2", "on-full": on_full})
            sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
            for _ in range(3):
                await produce(reader.partition, batch_of([b"a", b"b"], broker.clock, **sent))
                assert (await broker.engine.queues.figures(reader.partition, "q")).ready == 2

    told()
