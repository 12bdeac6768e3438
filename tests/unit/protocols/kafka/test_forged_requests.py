"""What brokers say to each other, said by clients: at their listener it is nothing, whoever they are."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from tests.doors.kafka import LIMITS, Client, Door, batch_of, with_door
from tests.doors.logins import PORT, allow, guard_door, log_in, somebody, stranger

from penstock.cluster.replication.source import SegmentWanted
from penstock.engine.access import BROKERS, Kind, Operation
from penstock.engine.forwarding import Forwarded
from penstock.engine.publishing import ALL
from penstock.engine.queues.share_ledgers import Deed, Order, Place
from penstock.net.connection import Connection, Connections
from penstock.protocols.internal import forwarding_codec, reading_codec, segment_codec, share_orders, share_start
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka.handlers import list_groups
from penstock.protocols.kafka.session import KafkaSession
from penstock.security.guard import Guard
from penstock.security.secret import Secret

INTERNAL = 9094
FAILED = 58
KINDS = (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID, Kind.CLUSTER)
OF_KAFKAS_BROKERS = (4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87)
"""From LeaderAndIsr to DeleteShareGroupState: what its brokers and controllers ask of each other."""


def run(body: Callable[[Door, Guard], Awaitable[None]]) -> None:
    """In a cluster; alice may do everything that can be allowed."""

    async def main(door: Door) -> None:
        door.context.cluster = True
        await door.topic()
        guard = await guard_door(door)
        await guard.users.create("alice", Secret(b"secret"))
        names = {Kind.CLUSTER: "kafka-cluster"}
        await guard.rules.create([allow("alice", Operation.ALL, kind, names.get(kind, "*")) for kind in KINDS])
        try:
            await body(door, guard)
        finally:
            await guard.stop()

    with_door(main)


async def is_cut_off(client: Client, key: int, body: bytes) -> bool:
    """Whether the connection ends without a word."""
    client.send_frame(struct.pack(">hhih", key, 0, 1, -1) + body)
    try:
        async with asyncio.timeout(5):
            await client.stream.closed()
    except TimeoutError:
        return False
    return True


def forged(topic_id: UUID) -> dict[int, bytes]:
    """Requests as a broker would make them, on behalf of all brokers."""
    forwarded = Forwarded(topic_id, 0, ALL, 1.0, (BROKERS,), batch_of(b"forged"))
    wanted = SegmentWanted(topic_id.bytes, 0, 0, 0, 0, 1 << 20, 0)
    return {
        forwarding_codec.KEY: forwarding_codec.encode(forwarded),
        reading_codec.KEY: reading_codec.QUESTION,
        segment_codec.KEY: segment_codec.encode(wanted, 2, 1),
        share_start.KEY: share_start.encode(share_start.Wanted("g", topic_id, 0)),
        share_orders.KEY: share_orders.encode(Order(Deed.FORGET, "g", 1, "", [Place(topic_id, 0)])),
    }


def test_no_client_speaks_as_a_broker() -> None:
    async def body(door: Door, guard: Guard) -> None:
        (topic,) = [topic for topic in door.engine.topics if topic.name == "t"]
        said = forged(topic.topic_id) | dict.fromkeys(OF_KAFKAS_BROKERS, bytes(64))
        for key, request in said.items():
            for client in (await stranger(door), await door.client(), await somebody(door, "alice")):
                assert await is_cut_off(client, key, request), key
        found = await (await somebody(door, "alice")).fetch()
        assert found["responses"][0]["partitions"][0]["high_watermark"] == 0

    run(body)


def test_the_clusters_secret_opens_nothing_for_clients() -> None:
    async def body(door: Door, guard: Guard) -> None:
        told: list[str | None] = []
        identity = Identity("correct horse", "broker 2")
        peer = Peer(door.network.of("other"), "broker", PORT, door.clock, identity=identity, judged=told.append)
        with pytest.raises(PeerGone):
            await peer.call(list_groups.API, 4, {})
        peer.close()
        assert any(told)
        assert not guard._inside

    run(body)


@pytest.mark.parametrize("user", ["alice", "admin", "broker 2"])
def test_no_users_password_opens_the_listener_of_brokers(user: str) -> None:
    async def body(door: Door, guard: Guard) -> None:
        await guard.users.create("admin", Secret(b"secret"))
        reception = Reception(door.engine, door.clock, Identity("correct horse", "broker 1"), lambda: (2,))

        def receive(connection: Connection) -> KafkaSession:
            return KafkaSession(door.context, connection, door.clock, reception.receive(connection))

        brokers = Connections(LIMITS, door.stats, door.clock, receive, asyncio.get_running_loop().call_soon)
        await door.network.listen("broker", INTERNAL, brokers.accept)
        client = Client(await door.network.connect("broker", INTERNAL))
        answers = await log_in(client, "SCRAM-SHA-256", user)
        assert answers[-1]["error_code"] == FAILED
        plain = Client(await door.network.connect("broker", INTERNAL))
        assert (await log_in(plain, "PLAIN", user))[-1]["error_code"]

    run(body)
