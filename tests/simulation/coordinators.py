"""How clients reach the coordinator of a group or a transactional id, wherever it is taken to be."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.engine.groups.offsets import FetchRequest, Spot
from penstock.errors import PenstockError
from tests.simulation.client import ANSWER_S, UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.committed_offsets import Read, Register, Terms

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
OFFSETS = ("__consumer_offsets", 0)
TRANSACTIONS = ("__transaction_state", 0)
Place = tuple[str, int]


async def ask_leader(
    client: Client, place: Place, work: Callable[[SimulatedBroker], Awaitable[T]], timeout_s: float = ANSWER_S
) -> T:
    """Ask who leads a partition, as far as the client knows, once.

    Raises:
        ConnectionError, TimeoutError: nobody is known, or there was no answer.
        PenstockError: what was answered.
    """
    leader = await client.leader_of(*place)
    if leader is None:
        raise ConnectionError(f"nobody is known to lead {place[0]}-{place[1]}")
    try:
        return await client.ask(leader.node_id, work, timeout_s)
    except UNANSWERED:
        client.forget_leader(*place)
        raise
    except PenstockError as error:
        if error.retriable:
            client.forget_leader(*place)
        raise


async def pause(client: Client) -> None:
    """Before something is tried again."""
    await asyncio.sleep(0.02 + 0.2 * client.random.random() ** 2)


async def make_internal_topics(world: "World") -> None:
    """Have the topics of the coordinators made while the cluster is whole, and known to all brokers."""

    async def make(broker: SimulatedBroker) -> None:
        await broker.engine.groups.shards.ready()
        await broker.engine.transactions.shards.ready()

    await world.cluster.call(world.cluster.ids[0], make, 20.0)

    def is_there() -> bool:
        return all(
            world.partition(node_id, *place) is not None
            for node_id in world.cluster.ids
            for place in (OFFSETS, TRANSACTIONS)
        )

    if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
        world.violate(f"the coordinators' topics never came up: {world.lacking()}")


class _Found(NamedTuple):
    value: int
    valid_until: float
    who: str


async def read_offset(client: Client, terms: Terms, group: str, spot: Spot, register: Register) -> int:
    """Read a committed offset once and note it, if it is decided. Raises as `ask_leader`."""
    loop = client.world.loop
    began_at = loop.time()

    async def look(broker: SimulatedBroker) -> _Found:
        partition = broker.engine.topics.partition(*OFFSETS)
        epoch = partition.leader_epoch
        fetched = (await broker.engine.groups.fetch(FetchRequest(group, (spot,), require_stable=True)))[spot]
        if isinstance(fetched, PenstockError):
            raise fetched
        until = terms.valid_until(partition.topic_id, partition.index, epoch)
        return _Found(fetched.offset, until, f"broker {broker.node_id} in epoch {epoch}")

    found = await ask_leader(client, OFFSETS, look)
    client.world.note(f"offset {group} {spot[0]}-{spot[1]} is {found.value} by {found.who}")
    register.reads.append(Read(found.value, min(began_at, found.valid_until), loop.time(), found.who))
    return found.value


async def read_at_last(client: Client, terms: Terms, group: str, spot: Spot, register: Register, limit_s: float) -> str:
    """Read it on a cluster that is whole; why that was not possible, if it was not."""
    deadline = client.world.loop.time() + limit_s
    while True:
        try:
            await read_offset(client, terms, group, spot, register)
            return ""
        except (*UNANSWERED, PenstockError) as error:
            if client.world.loop.time() >= deadline or (isinstance(error, PenstockError) and not error.retriable):
                return f"{register.name}: cannot be read {limit_s:.0f} s after the end: {error}"
        await pause(client)
