"""Who is let in at the internal listener, and what is refused at the one for clients."""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from tests.doors.kafka import LIMITS, Client, Door, fetch_values, open_door
from tests.doors.kio_values import entity_of, plain, read
from tests.unit.net.certificates import BROKER, Authority

from penstock.cluster.image import BrokerRecord
from penstock.cluster.replication.source import Position
from penstock.net.connection import Connections
from penstock.protocols.internal import replica_fetch_codec
from penstock.protocols.internal.identity import MECHANISM, Identity, Login
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.peers import Peers
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka.handlers import list_groups, write_txn_markers
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka_wire.guest import NotProven
from penstock.testing.memory_network import MemoryTransport
from penstock.testing.virtual_clock import run_virtual

SECRET = "correct horse"  # noqa: S105 - of nobody
OTHER_SECRET = "correct house"  # noqa: S105
INTERNAL = 9093
MARKERS = {
    "markers": [
        {
            "producer_id": 5,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [{"name": "t", "partition_indexes": [0, 1]}],
            "coordinator_epoch": 0,
        }
    ]
}


def step(login: Login, said: bytes) -> bytes:
    """In no loop: nothing is waited for."""
    return asyncio.run(login.step(said))


def with_cluster(body: Callable[[Door], Awaitable[None]], *, secret: str | None = SECRET) -> None:
    """A door of a broker in a cluster, with an internal listener beside it."""
    with_reception(lambda door, _: body(door), secret=secret)


def with_reception(
    body: Callable[[Door, Reception], Awaitable[None]], *, members: tuple[int, ...] = (), secret: str | None = SECRET
) -> None:
    async def main() -> None:
        door = await open_door()
        door.context.cluster = True
        identity = Identity(secret, "broker 1") if secret is not None else None
        reception = Reception(door.engine, door.clock, identity, lambda: members)
        internal = Connections(
            LIMITS,
            door.stats,
            door.clock,
            lambda connection: KafkaSession(door.context, connection, door.clock, reception.receive(connection)),
            asyncio.get_running_loop().call_soon,
        )
        await door.network.listen("broker", INTERNAL, internal.accept)
        await body(door, reception)
        assert not door.failures

    run_virtual(main, 1)


def peer_of(
    door: Door,
    secret: str | None = SECRET,
    port: int = INTERNAL,
    name: str = "broker 2",
    told: Callable[[str | None], None] = lambda _: None,
) -> Peer:
    identity = Identity(secret, name) if secret is not None else None
    return Peer(door.network.of("other"), "broker", port, door.clock, identity=identity, judged=told)


async def stranger(door: Door) -> Client:
    return Client(await door.network.connect("broker", INTERNAL))


async def closed_at_once(client: Client) -> None:
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await asyncio.wait_for(client.receive_frame(), 0.5)


async def say(client: Client, said: bytes) -> dict[str, object]:
    return await client.ask("sasl_authenticate", 0, auth_bytes=said)


# --- the exchange


def exchange(mine: Identity, theirs: Identity) -> None:
    login, proof = theirs.make_login(), mine.make_proof()
    assert login.choose(MECHANISM)
    proof.check(step(login, proof.answer(step(login, proof.first()))))
    assert login.is_done
    assert login.name == mine.name


def test_two_brokers_with_one_secret() -> None:
    exchange(Identity(SECRET, "b,r=o ker"), Identity(SECRET))


def test_another_secret_is_no_proof() -> None:
    login, proof = Identity(SECRET).make_login(), Identity("correct house").make_proof()
    login.choose(MECHANISM)
    said = proof.answer(step(login, proof.first()))
    with pytest.raises(NotProven, match="broker did not prove that it knows the secret"):
        step(login, said)
    assert login.has_failed
    with pytest.raises(NotProven):
        step(login, said)
    with pytest.raises(NotProven):
        login.choose(MECHANISM)


def test_the_one_that_accepts_has_to_know_the_secret_too() -> None:
    impostor, proof = Identity("correct house").make_login(), Identity(SECRET).make_proof()
    impostor.choose(MECHANISM)
    proof.answer(step(impostor, proof.first()))
    with pytest.raises(NotProven, match="does not know the secret"):
        proof.check(b"v=" + b"A" * 43 + b"=")


def test_what_was_overheard_cannot_be_said_again() -> None:
    ours = Identity(SECRET)
    first_login, proof = ours.make_login(), Identity(SECRET).make_proof()
    first_login.choose(MECHANISM)
    first = proof.first()
    final = proof.answer(step(first_login, first))
    step(first_login, final)
    again = ours.make_login()
    again.choose(MECHANISM)
    step(again, first)
    with pytest.raises(NotProven):
        step(again, final)
    assert not again.is_done


def test_a_nonce_that_is_not_the_servers() -> None:
    """CVE-2024-56128 is a server that does not look."""
    login, proof = Identity(SECRET).make_login(), Identity(SECRET).make_proof()
    login.choose(MECHANISM)
    told = step(login, proof.first())
    nonce, rest = told.split(b",", 1)
    with pytest.raises(NotProven, match="nonce"):
        step(login, proof.answer(nonce + b"x," + rest))


def test_a_server_that_asks_for_other_work_gets_none() -> None:
    login, proof = Identity(SECRET).make_login(), Identity(SECRET).make_proof()
    login.choose(MECHANISM)
    told = step(login, proof.first())
    with pytest.raises(NotProven, match="9999999 rounds"):
        proof.answer(told.replace(b"i=4096", b"i=9999999"))


def test_garbage_proves_nothing() -> None:
    ours, rng = Identity(SECRET), random.Random(1)
    for _ in range(300):
        login, proof = ours.make_login(), Identity(SECRET).make_proof()
        login.choose(MECHANISM)
        first = bytearray(proof.first())
        try:
            if rng.random() < 0.5:
                first[rng.randrange(len(first))] = rng.randrange(256)
                step(login, bytes(first))
            else:
                final = bytearray(proof.answer(step(login, bytes(first))))
                at = rng.randrange(len(final))
                final[at] = (final[at] + rng.randrange(1, 256)) % 256
                step(login, bytes(final))
        except NotProven:
            continue
        assert not login.is_done


def test_a_message_too_long() -> None:
    login = Identity(SECRET).make_login()
    login.choose(MECHANISM)
    with pytest.raises(NotProven, match="5000 bytes"):
        step(login, b"x" * 5000)


def test_a_connection_costs_little_once_the_secret_is_known() -> None:
    """About 1.5 ms of processor time; a stretch of the secret for each would be twenty times that."""
    mine, theirs = Identity(SECRET), Identity(SECRET)
    took = []
    for _ in range(10):
        started = time.thread_time()
        exchange(mine, theirs)
        took.append(time.thread_time() - started)
    assert min(took) < 0.01


def test_a_secret_is_not_shown() -> None:
    assert SECRET not in repr(Identity(SECRET))


# --- the internal listener


def test_a_broker_is_let_in_and_may_do_what_brokers_do() -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 2)
        peer = peer_of(door)
        answer = await peer.call(write_txn_markers.API, 1, MARKERS)
        assert [each.error_code for each in answer.markers[0].topics[0].partitions] == [0, 0]
        large = {"states_filter": ["x" * 32_000] * 4}
        assert (await peer.call(list_groups.API, 4, large)).error_code == 0, "frames may be large now"
        await asyncio.sleep(60)
        assert peer.is_connected

    with_cluster(body)


@pytest.mark.parametrize(
    ("secret", "told"),
    [("another", "is not of this cluster: authentication failed"), (None, "closed the connection")],
)
def test_a_broker_with_the_wrong_secret_or_none(secret: str | None, told: str) -> None:
    async def body(door: Door) -> None:
        with pytest.raises(PeerGone, match=told) as raised:
            await peer_of(door, secret).call(list_groups.API, 4, {})
        assert not raised.value.refused

    with_cluster(body)


def test_both_know_of_a_refusal_until_it_is_over() -> None:
    async def body(door: Door, reception: Reception) -> None:
        told: list[str | None] = []
        for name in ("broker-2", "broker-9", "broker-2 ", "x" * 1000):
            with pytest.raises(PeerGone) as raised:
                await peer_of(door, OTHER_SECRET, name=name, told=told.append).call(list_groups.API, 4, {})
            assert raised.value.stranger
        assert [why for why in told if why and why.startswith("authentication failed")] == told
        assert len(told) == 4
        assert set(reception.refused) == {"broker-2"}
        await peer_of(door, name="broker-3", told=told.append).call(list_groups.API, 4, {})
        assert set(reception.refused) == {"broker-2"}
        await peer_of(door, name="broker-2", told=told.append).call(list_groups.API, 4, {})
        assert told[4:] == [None, None]
        assert reception.refused == {}

    with_reception(body, members=(2, 3))


def test_a_refusal_goes_with_the_connection_it_was_met_at() -> None:
    async def body(door: Door, reception: Reception) -> None:
        record = BrokerRecord(1, "broker", 1, "broker", INTERNAL, None, 1, clean=True)
        peers = Peers(
            door.network.of("other"), door.clock, 2, lambda _: record, lambda: 1, identity=Identity(SECRET, "broker-2")
        )
        ours, reception.identity = reception.identity, Identity(OTHER_SECRET, "broker 1")
        refused, known, another = peers._connect(record), peers.to(1), peers._connect(record)
        assert known is not None
        for peer in (refused, another):
            with pytest.raises(PeerGone):
                await peer.connect()
        assert list(peers.words()) == [1] and peers.words()[1] is not None
        reception.identity = ours
        await known.connect()
        assert peers.words() == {1: None}, "although others have not asked again"
        door.network.cut("other")
        async with asyncio.timeout(60):
            while known.is_connected:  # noqa: ASYNC110 - polling is free in virtual time
                await asyncio.sleep(0.001)
        assert peers.words()[1] is not None, "it was let in once, and has no connection"
        refused.close()
        assert peers.words()[1] is not None
        another.close()
        assert peers.words() == {1: None}
        known.close()
        assert peers.words() == {}

    with_reception(body)


def test_a_broker_at_the_listener_for_clients() -> None:
    async def body(door: Door) -> None:
        with pytest.raises(PeerGone, match="is this its internal listener"):
            await peer_of(door, port=door.address[1]).call(list_groups.API, 4, {})

    with_cluster(body)


def test_an_impostor_that_lets_everybody_in_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    step_of = Login.step

    async def lenient(login: Login, said: bytes) -> bytes:
        try:
            return await step_of(login, said)
        except NotProven:
            return b"v=" + b"A" * 43 + b"="

    async def body(door: Door) -> None:
        monkeypatch.setattr(Login, "step", lenient)
        with pytest.raises(PeerGone, match="is not of this cluster: it does not know the secret"):
            await peer_of(door).call(list_groups.API, 4, {})

    with_cluster(body, secret=OTHER_SECRET)


def test_a_failure_is_told_late_and_ends_the_connection() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        assert (await client.ask("sasl_handshake", 1, mechanism=MECHANISM))["error_code"] == 0
        started = asyncio.get_running_loop().time()
        assert (await say(client, b"n,,n=x"))["error_code"] == 58
        assert asyncio.get_running_loop().time() - started >= 1
        await closed_at_once(client)

    with_cluster(body)


def test_nothing_is_answered_before_the_proof() -> None:
    async def body(door: Door) -> None:
        for api, version in (("metadata", 1), ("fetch", 12), ("list_groups", 4), ("write_txn_markers", 1)):
            client = await stranger(door)
            software = {"client_software_name": "x", "client_software_version": "1"}
            assert (await client.ask("api_versions", 3, **software))["error_code"] == 0
            values = fetch_values() if api == "fetch" else {}
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await asyncio.wait_for(client.ask(api, version, **values), 0.5)

    with_cluster(body)


def test_half_a_proof_is_none() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=MECHANISM)
        assert (await say(client, Identity(SECRET).make_proof().first()))["error_code"] == 0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(client.ask("list_groups", 4), 0.5)

    with_cluster(body)


def test_steps_out_of_order() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        assert (await say(client, Identity(SECRET).make_proof().first()))["error_code"] == 58
        await closed_at_once(client)
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=MECHANISM)
        assert (await client.ask("sasl_handshake", 1, mechanism=MECHANISM))["error_code"] == 34
        await closed_at_once(client)

    with_cluster(body)


def test_another_mechanism() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        answer = await client.ask("sasl_handshake", 1, mechanism="PLAIN")
        assert (answer["error_code"], answer["mechanisms"]) == (33, (MECHANISM,))
        await closed_at_once(client)

    with_cluster(body)


def test_a_frame_too_large_for_a_stranger() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        client.stream.send((65 * 1024).to_bytes(4, "big"))
        await closed_at_once(client)

    with_cluster(body)


def test_a_stranger_has_ten_seconds() -> None:
    async def body(door: Door) -> None:
        client = await stranger(door)
        started = asyncio.get_running_loop().time()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.receive_frame()
        assert asyncio.get_running_loop().time() - started == pytest.approx(10, abs=0.1)

    with_cluster(body)


def test_without_a_secret_only_a_certificate_lets_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = Authority.make(tmp_path / "ours").sign("broker", BROKER)
    certificate = ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())

    async def body(door: Door) -> None:
        with pytest.raises(PeerGone):
            await peer_of(door, None).call(list_groups.API, 4, {})
        client = await stranger(door)
        assert (await client.ask("sasl_handshake", 1, mechanism=MECHANISM))["error_code"] == 34
        monkeypatch.setattr(MemoryTransport, "certified", True)
        monkeypatch.setattr(MemoryTransport, "certificate", certificate)
        peer = peer_of(door, None)
        assert (await peer.call(list_groups.API, 4, {})).error_code == 0
        await asyncio.sleep(60)
        assert peer.is_connected

    with_cluster(body, secret=None)


def test_one_that_is_known_is_not_asked_again() -> None:
    async def body(door: Door) -> None:
        client, proof = await stranger(door), Identity(SECRET).make_proof()
        await client.ask("sasl_handshake", 1, mechanism=MECHANISM)
        told = await say(client, proof.first())
        proof.check((await say(client, proof.answer(told["auth_bytes"])))["auth_bytes"])  # type: ignore[arg-type]
        assert (await client.ask("sasl_handshake", 1, mechanism=MECHANISM))["error_code"] == 34
        assert (await say(client, b"x"))["error_code"] == 34
        assert (await client.ask("list_groups", 4))["error_code"] == 0, "and stays known"

    with_cluster(body)


# --- the listener for clients


@pytest.mark.parametrize("version", [4, 12, 14])
def test_a_client_that_says_it_is_a_replica(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 2)
        client = await door.client()
        name: str | UUID = topic.topic_id if version >= 13 else "t"
        values = fetch_values({name: {0: 0, 1: 0}})
        answer = await client.ask("fetch", version, **values, replica_id=1)
        assert [row["error_code"] for row in answer["responses"][0]["partitions"]] == [29, 29]
        answer = await client.ask("fetch", version, **values, replica_id=-1)
        assert [row["error_code"] for row in answer["responses"][0]["partitions"]] == [0, 0]

    with_cluster(body)


def test_a_clients_certificate_makes_it_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryTransport, "certified", True)

    async def body(door: Door) -> None:
        await door.topic("t", 1)
        answer = await (await door.client()).ask("fetch", 12, **fetch_values(), replica_id=1)
        assert answer["responses"][0]["partitions"][0]["error_code"] == 29

    with_cluster(body)


@pytest.mark.parametrize("internal", [False, True])
def test_a_follower_is_known_by_its_connection(internal: bool) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1)
        request = replica_fetch_codec.encode(
            [Position(topic.topic_id.bytes, 0, -1, 0, -1, 0, 1 << 20)],
            replica_id=2,
            replica_epoch=7,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
        )
        peer = peer_of(door) if internal else peer_of(door, None, door.address[1])
        key, version = replica_fetch_codec.KEY, replica_fetch_codec.VERSION
        body = await peer.request(key, version, request, flexible=True, handle=bytes)
        assert plain(read(entity_of("fetch", version, "response"), body))["error_code"] == 0
        fetched = replica_fetch_codec.decode(memoryview(body))
        (row,) = fetched.rows
        assert row.topic_id == topic.topic_id.bytes
        assert (row.code == 29) is not internal

    with_cluster(body)


def test_a_marker_where_nothing_is_open_is_for_brokers() -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 2)
        client = await door.client()
        for cluster in (True, False):
            door.context.cluster = cluster
            answer = await client.ask("write_txn_markers", 1, **MARKERS)
            assert [each["error_code"] for each in answer["markers"][0]["topics"][0]["partitions"]] == [48, 48]

    with_cluster(body)


def test_clients_are_not_asked_who_they_are() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        assert (await client.ask("sasl_handshake", 1, mechanism=MECHANISM))["error_code"] == 34
        assert (await say(client, b"x"))["error_code"] == 34
        assert (await client.ask("list_groups", 4))["error_code"] == 0

    with_cluster(body)
