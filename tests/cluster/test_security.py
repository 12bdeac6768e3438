"""Users, rules, roles and keys in a cluster: they outlive its leaders; what is taken away is gone on every broker."""

import asyncio
import json
import random
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, ResourceType

from penstock.cluster.metadata.etcd import EtcdStore
from penstock.engine.access import Access, Kind, Operation
from penstock.security.api_keys import NewKey
from penstock.security.changes import Changes
from penstock.security.key_changes import KeyChanges
from penstock.security.loader import Loader, in_pool
from penstock.security.modes import Mode
from penstock.security.rule_changes import RuleChanges
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.scram import Mechanism
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.user_changes import UserChanges
from penstock.server.system_clock import SystemClock
from tests.conformance.wire import Wire, batch, fetch_request, make, produce_request
from tests.unit.security.scram_client import ScramClient

from .conftest import PEER
from .secured_cluster import ADMIN, ALLOWED, PASSWORD, REFUSED, SecuredCluster, SecureWire

NOT_LEADER, UNKNOWN_TOPIC = 6, 3
NOT_AUTHENTICATED, WRONG_MECHANISM = 58, 33
FORGED_KEY = f"pk_{'0' * 16}_{'A' * 43}"
AWAY_S = 12.0
"""Longer than a broker's lease."""
pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its users are ours")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured")) as made:
        made.start()
        made.begin()
        made.create_topic("t", 3)
        yield made


@pytest.fixture
def cluster(started: SecuredCluster) -> SecuredCluster:
    """Three live brokers, also after a test that failed in between."""
    restart(started)
    return started


def restart(cluster: SecuredCluster) -> None:
    cluster.start()
    cluster.wait_whole("t")


WITHIN_S = 10.0
"""A change acts on every broker within a second; a machine with other work takes longer."""
REVOKED_WITHIN_S = 25.0
"""Files are looked at every few seconds."""
LONG_S = 60.0
T = TypeVar("T")


# --- what the API of Kafka does not do


class Store:
    """Users with roles, and API keys, as the brokers' own code puts them into the metadata store."""

    def __init__(self, store: EtcdStore) -> None:
        clock, randomness = SystemClock(), random.SystemRandom()
        loader = Loader(store, Access(), clock, Mode.CLOSED)
        changes = Changes(loader)
        self.loader = loader
        self.users = UserChanges(changes, clock, randomness, in_pool)
        self.rules = RuleChanges(changes, loader)
        self.keys = KeyChanges(changes, loader, SealingKeys(Secret(bytes(32))), clock, randomness)


def in_store(cluster: SecuredCluster, deed: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await EtcdStore.open(cluster.etcd.url)
        try:
            opened = Store(store)
            await opened.loader.refresh()
            return await deed(opened)
        finally:
            await store.close()

    return asyncio.run(run())


def make_key(cluster: SecuredCluster, user: str) -> NewKey:
    return in_store(cluster, lambda store: store.keys.create(user))


def make_clerk(cluster: SecuredCluster, name: str) -> None:
    """A user who may write to `t` by a role."""
    rule = Rule("Role:clerks", "*", Operation.WRITE, Kind.TOPIC, Pattern.LITERAL, "t", Effect.ALLOW)

    async def make(store: Store) -> None:
        await store.rules.set_role("clerks", [rule])
        await store.users.create(name, Secret(PASSWORD), roles=["clerks"])

    in_store(cluster, make)


# --- what is asked


def wait_for(what: str, is_so: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def may_write(wire: SecureWire, topic: str = "t") -> bool:
    """That a broker does not lead, or knows of no such topic, it says only to those who may."""
    told = wire.write(topic, 0)
    assert told in (ALLOWED, NOT_LEADER, UNKNOWN_TOPIC, REFUSED), told
    return told != REFUSED


def can_log_in(cluster: SecuredCluster, broker: int, user: str, password: str = PASSWORD) -> bool:
    try:
        with cluster.wire(broker, user, password):
            return True
    except PermissionError:
        return False


def on_live(cluster: SecuredCluster) -> list[int]:
    return [node.id for node in cluster.live]


def leaders_of(cluster: SecuredCluster, topic: str) -> Mapping[int, int]:
    """By broker, a partition of a new topic that it leads."""
    cluster.create_topic(topic, 3)
    found = {each.leader: index for index, each in cluster.agreed(topic).items()}
    assert set(found) == set(cluster.nodes), "a new topic is not led by all brokers"
    return found


def controller(cluster: SecuredCluster) -> int | None:
    told = cluster.etcd.ctl("get", "/penstock/controller", "--print-value-only").strip()
    return int(json.loads(told)["id"]) if told else None


# --- what outlives whom


def check_everybody(cluster: SecuredCluster, key: str) -> None:
    """Alice by her rule, the clerk by his role, a key of Alice's, and who may not, on every live broker."""
    for broker in on_live(cluster):
        for user in ("alice", "clerk"):
            with cluster.wire(broker, user) as wire:
                assert may_write(wire), f"{user} at broker {broker}"
                assert wire.describe("hidden") == REFUSED
        with cluster.wire(broker, "nobody") as wire:
            assert not may_write(wire)
        assert not can_log_in(cluster, broker, "not-there")
        assert (cluster.ask_web(broker, key), cluster.ask_web(broker, FORGED_KEY)) == (200, 401)


def test_users_rules_roles_and_keys_outlive_leaders_and_restarts(cluster: SecuredCluster) -> None:
    for user in ("alice", "nobody"):
        cluster.add_user(user)
    cluster.allow("alice", AclOperation.WRITE, "t")
    cluster.allow("alice", AclOperation.DESCRIBE, "kafka-cluster", ResourceType.BROKER)
    make_clerk(cluster, "clerk")
    key = make_key(cluster, "alice").text.reveal().decode()
    wait_for("the key is known", lambda: all(cluster.ask_web(each, key) == 200 for each in cluster.nodes))
    check_everybody(cluster, key)

    killed = controller(cluster)
    assert killed is not None
    cluster.nodes[killed].kill()
    wait_for("another controller", lambda: controller(cluster) not in (killed, None), LONG_S)
    check_everybody(cluster, key)
    cluster.allow("alice", AclOperation.WRITE, "made-later")
    restart(cluster)
    check_everybody(cluster, key)

    member = cluster.etcd.leader()
    cluster.etcd.kill(member)
    check_everybody(cluster, key)
    cluster.etcd.start(member)

    for node in cluster.nodes.values():
        node.terminate()
    assert [node.wait_end() for node in cluster.nodes.values()] == [0] * len(cluster.nodes)
    restart(cluster)
    check_everybody(cluster, key)
    for broker in cluster.nodes:
        with cluster.wire(broker, "alice") as wire:
            assert may_write(wire, "made-later")


# --- what is taken away


def park_everywhere(
    cluster: SecuredCluster,
    led: Mapping[int, int],
    topic: str,
    user: str,
    closing: ExitStack,
    *,
    certified: bool = False,
) -> dict[int, tuple[SecureWire, SecureWire]]:
    """By broker: a connection that waits for records there, and an idle one."""
    found = {}
    for broker, partition in led.items():
        make = cluster.wire_by_certificate if certified else cluster.wire
        parked, idle = (closing.enter_context(make(broker, user)) for _ in range(2))
        assert idle.describe(topic) == ALLOWED
        parked.park(topic, partition, 0, wait_s=LONG_S)
        found[broker] = parked, idle
    return found


def test_who_is_deleted_or_has_another_password_is_sent_away_by_all_brokers(cluster: SecuredCluster) -> None:
    led = leaders_of(cluster, "kept")
    for user in ("dora", "paul", "stays"):
        cluster.add_user(user)
        cluster.allow(user, AclOperation.READ, "kept")
    key = make_key(cluster, "dora").text.reveal().decode()
    cluster.allow("dora", AclOperation.DESCRIBE, "kafka-cluster", ResourceType.BROKER)
    with ExitStack() as closing:
        inside = {user: park_everywhere(cluster, led, "kept", user, closing) for user in ("dora", "paul", "stays")}
        wait_for("the key is known", lambda: all(cluster.ask_web(each, key) == 200 for each in cluster.nodes))
        in_store(cluster, lambda store: store.users.delete("dora"))
        cluster.add_user("paul", "another one")
        deadline = time.monotonic() + WITHIN_S
        for user in ("dora", "paul"):
            for broker, wires in inside[user].items():
                for kind, wire in zip(("parked", "idle"), wires, strict=True):
                    left = max(deadline - time.monotonic(), 0.1)
                    assert wire.is_ended(left), f"{user} is there still, at broker {broker} ({kind})"
        assert all(idle.describe("kept") == ALLOWED for _, idle in inside["stays"].values())
    for broker in cluster.nodes:
        assert not can_log_in(cluster, broker, "dora")
        assert not can_log_in(cluster, broker, "paul")
        assert can_log_in(cluster, broker, "paul", "another one")
        assert cluster.ask_web(broker, key) == 401


def test_a_rule_that_is_removed_is_gone_on_all_brokers_also_for_who_waits(cluster: SecuredCluster) -> None:
    led = leaders_of(cluster, "watched")
    for user in ("eve", "may"):
        cluster.add_user(user)
        cluster.allow(user, AclOperation.READ, "watched")
    with ExitStack() as closing:
        inside = {user: park_everywhere(cluster, led, "watched", user, closing) for user in ("eve", "may")}
        assert cluster.disallow("eve") == 1
        deadline = time.monotonic() + WITHIN_S
        for broker, (_, idle) in inside["eve"].items():
            while idle.describe("watched") != REFUSED:
                assert time.monotonic() < deadline, f"the rule is in force still at broker {broker}"
        for broker, partition in led.items():
            with cluster.wire(broker, ADMIN) as wire:
                assert wire.write("watched", partition, b"secret") == ALLOWED
        for broker in cluster.nodes:
            told = {user: inside[user][broker][0].fetched() for user in inside}
            assert (told["eve"].error_code.value, bytes(told["eve"].records or b"")) == (REFUSED, b""), broker
            assert (told["may"].error_code.value, b"secret" in told["may"].records) == (ALLOWED, True), broker


def test_a_certificate_that_is_revoked_opens_no_broker_any_more(cluster: SecuredCluster) -> None:
    led = leaders_of(cluster, "certified")
    for user in ("frank", "grace"):
        cluster.clients.sign(user)
        cluster.allow(user, AclOperation.READ, "certified")
    with ExitStack() as closing:
        inside = {
            user: park_everywhere(cluster, led, "certified", user, closing, certified=True)
            for user in ("frank", "grace")
        }
        cluster.revoke("frank")
        deadline = time.monotonic() + REVOKED_WITHIN_S
        for broker, wires in inside["frank"].items():
            for wire in wires:
                assert wire.is_ended(max(deadline - time.monotonic(), 0.1)), f"frank is there still, at broker {broker}"
        assert all(idle.describe("certified") == ALLOWED for _, idle in inside["grace"].values())
    for broker in cluster.nodes:
        with pytest.raises(OSError), cluster.wire_by_certificate(broker, "frank") as wire:  # noqa: PT011
            wire.describe("certified")


# --- etcd is away


def test_without_etcd_the_last_rules_stay_logins_go_on_and_changes_are_refused(cluster: SecuredCluster) -> None:
    for user in ("olga", "idle"):
        cluster.add_user(user)
    cluster.allow("olga", AclOperation.WRITE, "t")
    wait_for("olga may write", lambda: all(_may(cluster, each, "olga") for each in cluster.nodes))
    members = range(len(cluster.etcd.endpoints))
    with ExitStack() as closing:
        open_ones = [closing.enter_context(cluster.wire(broker, "olga")) for broker in cluster.nodes]
        for member in members:
            cluster.etcd.kill(member)
        try:
            deadline = time.monotonic() + AWAY_S
            refused = [
                _refusal(lambda: cluster.add_user("late")),
                _refusal(lambda: cluster.delete_user("olga")),
                _refusal(lambda: cluster.allow("idle", AclOperation.WRITE, "t")),
                _refusal(lambda: cluster.disallow("olga")),
            ]
            assert all(refused), refused
            while True:  # until leases would have ended several times over
                assert all(may_write(wire) for wire in open_ones)
                for broker in cluster.nodes:
                    assert _may(cluster, broker, "olga")
                    assert not _may(cluster, broker, "idle")
                    assert not can_log_in(cluster, broker, "late")
                if time.monotonic() > deadline:
                    break
        finally:
            for member in members:
                cluster.etcd.start(member, wait=False)
            cluster.etcd.wait()
        assert all(may_write(wire) for wire in open_ones)
    wait_for("changes are taken again", lambda: not _refusal(lambda: cluster.add_user("again")), LONG_S)
    for broker in cluster.nodes:
        wait_for("the new user is known", partial(can_log_in, cluster, broker, "again"))
        assert _may(cluster, broker, "olga")
        assert not _may(cluster, broker, "idle")
        assert not can_log_in(cluster, broker, "late")


def _may(cluster: SecuredCluster, broker: int, user: str) -> bool:
    with cluster.wire(broker, user) as wire:
        return may_write(wire)


def _refusal(change: Callable[[], object]) -> str:
    """What somebody is told whose change is not made; empty if it is."""
    try:
        change()
    except KafkaException as error:
        return str(error)
    return ""


# --- the listener of the brokers among themselves


def raw(key: int, version: int, body: bytes) -> bytes:
    """A request by its numbers; brokers alone have names for some of them."""
    client = b"broker-1"
    head = struct.pack(">hhih", key, version, 7, len(client)) + client
    return struct.pack(">i", len(head) + len(body)) + head + body


FORWARD, COPY_SEGMENT, READ = 20002, 20001, 20003
_TOPIC_ID = bytes(16)
_AS_BROKER = struct.pack(">H?HHBBBq", 1, True, 0, 0, 0, 0, 0, 0)
"""How a broker says that it asks on its own behalf."""
FORGED = {
    "forward: versions": raw(FORWARD, 0, b"\0"),
    "forward: as a broker": raw(FORWARD, 0, struct.pack(">B16siiB", 2, _TOPIC_ID, 0, 5000, 3) + b"all" + _AS_BROKER),
    "read: versions": raw(READ, 0, b"\0"),
    "copy segment": raw(COPY_SEGMENT, 0, struct.pack(">16siiqqiqiq", _TOPIC_ID, 0, 0, 0, 0, 1 << 20, 0, 1, 1)),
    "leader and isr": raw(4, 0, bytes(40)),
    "controlled shutdown": raw(7, 1, bytes(4)),
}


_WHOLE = {"include_cluster_authorized_operations": False, "endpoint_type": 1}


def is_closed_unanswered(wire: Wire) -> bool:
    """Whether the broker ends the connection without a word."""
    wire._socket.settimeout(WITHIN_S)
    try:
        return wire._socket.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def _send_raw(frame: bytes, wire: Wire) -> None:
    wire._socket.sendall(frame)


def say(wire: Wire, said: bytes) -> tuple[int, bytes]:
    answer = wire.call("sasl_authenticate", 2, auth_bytes=said)
    return int(answer.error_code.value), bytes(answer.auth_bytes)


def guess(wire: Wire, name: str, password: str) -> int:
    """The error that ends a login by SCRAM."""
    assert wire.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code.value == 0
    client = ScramClient(Mechanism.SHA_256, name, password)
    error, told = say(wire, client.first())
    if error == 0:
        error, _ = say(wire, client.final(told))
    return error


def test_no_clients_credentials_open_the_brokers_listener(cluster: SecuredCluster) -> None:
    cluster.add_user("mallory")
    key = make_key(cluster, "mallory").text.reveal().decode()
    cluster.clients.sign("certified")
    context = ssl.create_default_context(cafile=cluster.clients.certificate)
    context.load_cert_chain(cluster.clients.directory / "certified.pem", cluster.clients.directory / "certified.key")
    pairs = [(user, said) for user in (ADMIN, "mallory", "broker-1", "") for said in (PASSWORD, key, "")]

    def knock(address: str, name: str, password: str) -> None:
        with Wire(address) as wire:
            assert guess(wire, name, password) == NOT_AUTHENTICATED, f"{name} at {address}"
            assert is_closed_unanswered(wire)

    tried = [(addresses["internal"], *pair) for addresses in cluster.addresses.values() for pair in pairs]
    with ThreadPoolExecutor(len(tried)) as pool:  # who fails is told so late
        list(pool.map(lambda each: knock(*each), tried))
    for addresses in cluster.addresses.values():
        internal = addresses["internal"]
        for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"):
            with Wire(internal) as wire:
                answer = wire.call("sasl_handshake", 1, mechanism=mechanism)
                assert (answer.error_code.value, tuple(answer.mechanisms)) == (WRONG_MECHANISM, ("SCRAM-SHA-256",))
                assert is_closed_unanswered(wire)
        with pytest.raises(OSError), SecureWire(internal, context) as secure:  # noqa: PT011
            secure.describe("t")


def test_nothing_is_answered_there_before_the_proof_nor_after_half_of_it(cluster: SecuredCluster) -> None:
    plain: list[tuple[str, Callable[[Wire], object]]] = [
        ("describe cluster", lambda wire: wire.send(make("describe_cluster", 1, **_WHOLE))),
        ("fetch", lambda wire: wire.send(fetch_request("t", 0, 0))),
        ("produce", lambda wire: wire.send(produce_request("t", {0: batch([b"forged"])}))),
    ]
    plain += [(what, partial(_send_raw, frame)) for what, frame in FORGED.items()]
    for broker, addresses in cluster.addresses.items():
        for what, send in plain:
            with Wire(addresses["internal"]) as wire:
                send(wire)
                assert is_closed_unanswered(wire), f"{what} at broker {broker}"
            with Wire(addresses["internal"]) as wire:
                assert wire.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code.value == 0
                error, _ = say(wire, ScramClient(Mechanism.SHA_256, "broker-1", PASSWORD).first())
                assert error == 0
                send(wire)
                assert is_closed_unanswered(wire), f"{what} after half a proof, at broker {broker}"


def test_what_brokers_ask_is_not_answered_to_clients_whoever_they_are(cluster: SecuredCluster) -> None:
    for broker in cluster.nodes:
        for what, frame in FORGED.items():
            with cluster.wire(broker, ADMIN) as wire:
                wire._socket.sendall(frame)
                assert is_closed_unanswered(wire), f"{what} at broker {broker}"
        with cluster.wire(broker, ADMIN) as wire:
            wire.park("t", 0, 0, wait_s=0, replica=2)
            told = wire.fetched()
            assert (told.error_code.value, bytes(told.records or b"")) == (REFUSED, b"")
