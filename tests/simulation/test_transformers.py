"""A queue that is transformed in transactions: whoever dies, and when, each message is done and written, or neither."""

import asyncio
import gc
from collections import Counter

import pytest

from penstock.engine.queues.receipts import make_receipt
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.transactions.requests import EndRequest
from penstock.engine.transactions.transaction import BUMPED_AT_END, ProducerIdentity
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.testing.virtual_clock import run_virtual
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import OFFSETS, TRANSACTIONS
from tests.simulation.scenarios import Scenario
from tests.simulation.test_queue_features import ACK, QUEUE, Trial, offsets, trial
from tests.simulation.test_simulation import check
from tests.simulation.transactional_producer import produce
from tests.simulation.transactions import fetch
from tests.simulation.transformers import TransformWorkload
from tests.simulation.world import run

_TRANSFORMERS = Scenario(workloads=(TransformWorkload,))
SEEDS = 16
OUT = "made"
ID, VALUE = "transformer", b"a made into b"
STEPS = ("begun", "written", "acknowledged", "ending", "ended")
"""Behind which somebody dies."""
_TIMEOUT_MS = 4000


def test_what_is_settled_was_transformed_once() -> None:
    reports = [run(seed, scenario=_TRANSFORMERS) for seed in range(SEEDS)]
    check(reports)
    done: Counter[str] = sum((report.counters for report in reports), Counter())
    assert done["messages transformed"] > 4 * len(reports), done


class Transaction:
    """One message, and one record that is made of it."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._identity = ProducerIdentity(-1, -1)

    async def begin(self) -> None:
        it = self._trial

        async def create(broker: SimulatedBroker) -> None:
            await broker.engine.create_topic(OUT, 1, assignment=[[2, 3, 1]])
            await broker.engine.groups.shards.ready()
            await broker.engine.transactions.shards.ready()

        await it.cluster.call(1, create, 20.0)
        await it.until(lambda: all(it.leader(name) for name in (OUT, OFFSETS[0], TRANSACTIONS[0])))
        self._identity = await it.ask(TRANSACTIONS[0], lambda broker: broker.engine.transactions.init(ID, _TIMEOUT_MS))

    async def write(self) -> None:
        batch = build_batch(
            [(None, VALUE, [], self._trial.cluster.clocks[1].now_ms())],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        await self._trial.ask(OUT, lambda broker: produce(broker, (OUT, 0), batch, ID, add=True))

    async def acknowledge(self, receipt: str) -> None:
        request = AckRequest(ID, *self._identity, QUEUE, {(QUEUE, 0): receipt})

        async def acknowledge(broker: SimulatedBroker) -> None:
            await broker.engine.transactions.add_offsets(ID, *self._identity, QUEUE)
            for error in (await broker.engine.transactional_acks.acknowledge(request)).values():
                if error is not None:
                    raise error

        await self._trial.ask(OFFSETS[0], acknowledge)

    async def end(self, *, committed: bool) -> None:
        request = EndRequest(ID, *self._identity, committed, BUMPED_AT_END)
        await self._trial.ask(TRANSACTIONS[0], lambda broker: broker.engine.transactions.end(request))


async def play(it: Trial, step: str, victim: str, *, commits: bool) -> tuple[bool, bool]:
    """Somebody dies behind a step: whether the producer was told that it has committed, and whether it was not told."""
    transaction = Transaction(it)
    await transaction.begin()
    await it.send(b"a")
    (taken,) = await it.receive()
    receipt = make_receipt(0, taken.message.offset, taken.lease_id)
    died = False

    async def over(now: str) -> None:
        nonlocal died
        if step == now and not died:
            died = True
            it.cluster.kill(it.leader(victim), power_cut=it.random.random() < 0.5)

    await over("begun")
    try:
        await transaction.write()
        await over("written")
        await transaction.acknowledge(receipt)
        await over("acknowledged")
        ending = asyncio.ensure_future(transaction.end(committed=commits))
        await asyncio.sleep(it.random.uniform(0, 0.02))
        await over("ending")
        await ending
        await over("ended")
    except PenstockError as error:  # its time was over, or its lease
        if error.code not in (Code.STALE_RECEIPT, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH):
            raise
        return False, True
    return commits, False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tasks of killed brokers
@pytest.mark.parametrize("victim", [QUEUE, OUT, TRANSACTIONS[0], OFFSETS[0]])
@pytest.mark.parametrize("step", STEPS)
def test_all_or_nothing_whoever_dies(step: str, victim: str) -> None:
    """And nothing is left open: what was not acknowledged comes again, soon after the transaction's time."""

    async def main() -> None:
        seed = STEPS.index(step)
        it = Trial(seed, {"visibility": "2s"})
        await it.begin()
        commits = seed % 2 == 0 or victim == QUEUE
        is_told, is_open = await play(it, step, victim, commits=commits)
        await asyncio.sleep(_TIMEOUT_MS / 1000 + 8)
        found = await it.ask(OUT, lambda broker: fetch(broker, (OUT, 0), 0, -1, committed=True))
        is_made = bool(found.records)
        assert is_made or not is_told, "it was told, and is not there"
        assert not is_made or is_told or is_open, "it is there, and was aborted"
        again = await it.receive()
        assert offsets(again) == ([] if is_made else [0])
        await it.settle(again, ACK)
        figures = await it.figures()
        assert (figures.ready, figures.leased, figures.in_transactions) == (0, 0, 0)
        assert it.cluster.crashes == []

    try:
        run_virtual(main, STEPS.index(step))
    finally:
        gc.collect()


@trial()
async def test_a_deleted_topic_holds_up_no_transaction(it: Trial) -> None:
    """Also if there is another one of that name, with or without a queue."""
    transaction = Transaction(it)
    await transaction.begin()
    await it.send(b"a")
    (taken,) = await it.receive()
    await transaction.write()
    await transaction.acknowledge(make_receipt(0, taken.message.offset, taken.lease_id))

    async def delete(broker: SimulatedBroker) -> None:
        topic = broker.engine.topics.get(QUEUE)
        assert topic is not None
        await broker.engine.delete_topic(topic)

    async def make_again(broker: SimulatedBroker) -> None:
        topic = await broker.engine.create_topic(QUEUE, 1, assignment=[[3, 1, 2]])
        if it.random.random() < 0.5:
            await broker.engine.queues.attach(topic)

    await it.ask(QUEUE, delete)
    if it.random.random() < 0.7:
        await it.cluster.call(2, make_again, 20.0)
    await transaction.end(committed=True)

    async def state(broker: SimulatedBroker) -> str:
        return (await broker.engine.transactions.describe(ID)).state

    async with asyncio.timeout(60):
        while await it.ask(TRANSACTIONS[0], state) != "CompleteCommit":  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.1)
    found = await it.ask(OUT, lambda broker: fetch(broker, (OUT, 0), 0, -1, committed=True))
    assert [value for _, value in found.records] == [VALUE]
