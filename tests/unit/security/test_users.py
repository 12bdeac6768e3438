"""Users, roles and API keys, from being made to being gone; what may not be."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import pytest
from tests.unit.security.scram_client import ScramClient
from tests.unit.security.security_world import PEER, SEALING, Node
from tests.unit.security.test_ruleset import ORDERS, rule

from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Entry
from penstock.security import paths
from penstock.security.api_keys import MAX_KEYS_OF_A_USER, MAX_RULES_OF_A_KEY
from penstock.security.authentication import Key, Plain
from penstock.security.directory import Directory
from penstock.security.key_changes import KeyChanges
from penstock.security.methods import Method
from penstock.security.refusal import NotAuthenticated
from penstock.security.rules import Filter
from penstock.security.scram import ITERATIONS, Mechanism, salt_password
from penstock.security.sealing import SealedAway, SealingKeys
from penstock.security.secret import Secret
from penstock.security.user_changes import may_change
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import run_virtual

SECRET = Secret("pencil")


def with_node(test: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await test(await Node(SimulatedEtcd(max_delay_s=0.0)).begin())

    run_virtual(run, 1)


def directory_of(node: Node) -> Directory:
    assert node.loader.directory is not None
    return node.loader.directory


async def log_in(node: Node, user: str, password: str, mechanism: Mechanism = Mechanism.SHA_256) -> Subject | None:
    login, client = node.authenticator.begin_scram(mechanism, PEER), ScramClient(mechanism, user, password)
    try:
        assert client.believes(await login.step(client.final(await login.step(client.first()))))
    except NotAuthenticated:
        assert login.subject is None
    return login.subject


async def refused(code: Code, change: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(PenstockError) as caught:
        await change
    assert caught.value.code is code


def test_a_user_from_the_first_day_to_the_last() -> None:
    async def test(node: Node) -> None:
        assert await log_in(node, "alice", "pencil") is None
        await node.users.create("alice", SECRET, roles=["consumer:orders", "consumer:orders"])
        for mechanism in Mechanism:
            subject = await log_in(node, "alice", "pencil", mechanism)
            assert subject == Subject("User:alice", PEER.host, PEER.door, Method.SCRAM)
            assert node.access.decide(subject, Operation.READ, ORDERS)
            assert not node.access.decide(subject, Operation.WRITE, ORDERS)
        (user,) = directory_of(node).users.values()
        assert user.roles == ("consumer:orders",) and user.is_enabled and user.made_ms == node.clock.now_ms()
        assert {each.iterations for each in directory_of(node).credentials["alice"].keys.values()} == {ITERATIONS}
        await node.users.alter("alice", roles=["producer"])
        assert node.access.decide(subject, Operation.WRITE, ORDERS)
        assert not node.access.decide(subject, Operation.READ, ORDERS)
        await node.users.set_password("alice", Secret("pen"))
        assert await log_in(node, "alice", "pencil") is None and await log_in(node, "alice", "pen")
        await node.users.alter("alice", is_enabled=False)
        assert await log_in(node, "alice", "pen") is None and not node.authenticator.is_valid(subject)
        await node.users.alter("alice", is_enabled=True)
        assert await log_in(node, "alice", "pen") and node.authenticator.is_valid(subject)
        await node.users.delete("alice")
        assert await log_in(node, "alice", "pen") is None and not node.authenticator.is_valid(subject)
        assert not node.access.decide(subject, Operation.WRITE, ORDERS)
        assert [entry.key for entry in node.etcd.state.snapshot("").entries] == [paths.REVISION]

    with_node(test)


def test_what_cannot_be_done_to_users() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        before = node.etcd.state.snapshot("")
        await refused(Code.EXISTS, node.users.create("alice", SECRET))
        await refused(Code.INVALID_REQUEST, node.users.create("a\nb", SECRET))
        await refused(Code.INVALID_REQUEST, node.users.create("bob", SECRET, roles=["nothing"]))
        await refused(Code.INVALID_REQUEST, node.users.alter("alice", roles=["nothing"]))
        for password in (b"", b"x" * 1025, b"a\0b", b"\xff"):
            await refused(Code.UNACCEPTABLE_CREDENTIAL, node.users.create("bob", Secret(password)))
            await refused(Code.UNACCEPTABLE_CREDENTIAL, node.users.set_password("alice", Secret(password)))
        for change in (
            node.users.alter("bob", is_enabled=False),
            node.users.set_password("bob", SECRET),
            node.users.delete("bob"),
            node.users.delete_mechanism("bob", Mechanism.SHA_256),
            node.keys.create("bob"),
            node.keys.delete("0" * 16),
            node.rules.delete_role("billing"),
        ):
            await refused(Code.NOT_FOUND, change)
        await node.users.alter("alice", is_enabled=True)  # nothing changes
        assert node.etcd.state.snapshot("") == before

    with_node(test)


def test_the_first_admin_is_made_once() -> None:
    async def test(node: Node) -> None:
        made = await node.users.bootstrap("root")
        assert made is not None and len(made.reveal()) == 32
        subject = await log_in(node, "root", made.reveal().decode())
        assert subject is not None
        assert node.access.decide(subject, Operation.ALTER, Resource(Kind.CLUSTER, "kafka-cluster"))
        await refused(Code.NOT_ALLOWED, node.users.bootstrap("other"))
        await refused(Code.NOT_ALLOWED, node.users.bootstrap("root", SECRET))
        await node.users.delete("root")
        assert await node.users.bootstrap("root", SECRET) is None
        assert await log_in(node, "root", "pencil")

    with_node(test)


def test_nobody_becomes_the_first_admin_beside_what_kafka_has_brought() -> None:
    async def test(node: Node) -> None:
        await node.users.set_salted("alice", Mechanism.SHA_256, Secret(b"s" * 32), b"salt", 4096)
        await refused(Code.NOT_ALLOWED, node.users.bootstrap("root"))
        await node.users.delete("alice")
        await node.users.create("CN=alice", None, may_use_certificate=True)
        await refused(Code.NOT_ALLOWED, node.users.bootstrap("root"))

    with_node(test)


@pytest.mark.parametrize("iterations", [4096, 16_384])
@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_password_that_kafkas_tools_have_salted(mechanism: Mechanism, iterations: int) -> None:
    async def test(node: Node) -> None:
        salted = Secret(salt_password(mechanism, b"pencil", b"their salt", iterations))
        await node.users.set_salted("alice", mechanism, salted, b"their salt", iterations)
        assert await log_in(node, "alice", "pencil", mechanism)
        other = next(each for each in Mechanism if each is not mechanism)
        assert await log_in(node, "alice", "pencil", other) is None
        assert (await node.authenticator.authenticate(Plain("alice", SECRET), PEER)).principal == "User:alice"
        await node.users.set_password("alice", Secret("pen"))
        await node.users.set_salted("alice", mechanism, salted, b"their salt", iterations)
        assert await log_in(node, "alice", "pencil", mechanism) and await log_in(node, "alice", "pen", other)
        await node.users.delete_mechanism("alice", mechanism)
        assert await log_in(node, "alice", "pencil", mechanism) is None and await log_in(node, "alice", "pen", other)
        await node.users.delete_mechanism("alice", other)
        assert directory_of(node).credentials == {} and list(directory_of(node).users) == ["alice"]

    with_node(test)


def test_what_kafkas_tools_may_not_bring() -> None:
    async def test(node: Node) -> None:
        salted = Secret(b"s" * 32)
        for name, secret, salt, iterations in (
            ("", salted, b"salt", 4096),
            ("alice", salted, b"salt", 4095),
            ("alice", salted, b"salt", 16_385),
            ("alice", salted, b"", 4096),
            ("alice", salted, b"s" * 1025, 4096),
            ("alice", Secret(b"s" * 31), b"salt", 4096),
        ):
            change = node.users.set_salted(name, Mechanism.SHA_256, secret, salt, iterations)
            await refused(Code.UNACCEPTABLE_CREDENTIAL, change)
        assert node.etcd.state.snapshot("").entries == []

    with_node(test)


def test_a_role_that_was_made() -> None:
    async def test(node: Node) -> None:
        await node.rules.set_role("billing", [rule("allow Role:billing * read topic literal orders")])
        await node.users.create("alice", SECRET, roles=["billing"])
        subject = await log_in(node, "alice", "pencil")
        assert subject is not None and node.access.decide(subject, Operation.READ, ORDERS)
        await node.rules.create([rule("deny Role:billing * read topic prefixed ord")])
        assert not node.access.decide(subject, Operation.READ, ORDERS)
        await node.rules.delete([Filter(principal="Role:billing")])
        assert node.access.decide(subject, Operation.READ, ORDERS)
        assert node.rules.find(Filter()) == []
        await refused(Code.NOT_ALLOWED, node.rules.delete_role("billing"))
        await node.users.alter("alice", roles=[])
        await node.rules.delete_role("billing")
        assert directory_of(node).roles == {} and not node.access.decide(subject, Operation.READ, ORDERS)
        await refused(Code.INVALID_REQUEST, node.users.alter("alice", roles=["billing"]))
        many = [rule(f"allow Role:billing * read topic literal t{number}") for number in range(1001)]
        await refused(Code.LIMIT_EXCEEDED, node.rules.set_role("billing", many))

    with_node(test)


def test_a_key_is_its_users_or_less_and_ends() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET, roles=["consumer"])
        whole = await node.keys.create("alice")
        until_ms = node.clock.now_ms() + 5000
        narrow = await node.keys.create(
            "alice", rules=[rule("allow User:x * all topic literal orders")], until_ms=until_ms, note="for the report"
        )
        subject = await node.authenticator.authenticate(Key(narrow.text), PEER)
        assert subject == Subject("User:alice", PEER.host, PEER.door, Method.API_KEY, narrow.id, until_ms)
        assert node.access.decide(subject, Operation.READ, ORDERS)
        assert not node.access.decide(subject, Operation.WRITE, ORDERS)
        assert not node.access.decide(subject, Operation.READ, Resource(Kind.TOPIC, "bills"))
        by_whole = await node.authenticator.authenticate(Key(whole.text), PEER)
        assert node.access.decide(by_whole, Operation.READ, Resource(Kind.TOPIC, "bills"))
        assert not may_change(by_whole) and may_change(Subject("User:alice", method=Method.SCRAM))
        node.clock.jump_ms(4999)
        assert node.authenticator.is_valid(subject)
        node.clock.jump_ms(1)
        assert not node.authenticator.is_valid(subject)
        await refused(Code.NOT_AUTHENTICATED, node.authenticator.authenticate(Key(narrow.text), PEER))
        await node.keys.delete(whole.id)
        assert not node.access.decide(by_whole, Operation.READ, ORDERS)
        assert not node.authenticator.is_valid(by_whole)
        await refused(Code.NOT_AUTHENTICATED, node.authenticator.authenticate(Key(whole.text), PEER))

    with_node(test)


def test_what_is_kept_of_a_key_is_not_the_key() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        for signs in (False, True):
            made = await node.keys.create("alice", signs=signs)
            kept = b"".join(entry.value for entry in node.etcd.state.snapshot("").entries)
            assert made.secret.reveal() not in kept and made.text.reveal() not in kept
            assert b"pencil" not in kept
            key = directory_of(node).keys[made.id]
            assert key.shown == f"pk_{made.id}_..." and key.user == "alice"
            assert node.keys.signing_secret(made.id) == (made.secret if signs else None)
        assert node.keys.signing_secret("0" * 16) is None
        made = await node.keys.create("alice", signs=True, until_ms=node.clock.now_ms() + 1)
        assert node.keys.signing_secret(made.id) == made.secret
        node.clock.jump_ms(1)
        assert node.keys.signing_secret(made.id) is None

    with_node(test)


def test_the_key_that_seals_is_replaced() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        made = [await node.keys.create("alice", signs=True) for _ in range(3)]
        plain = await node.keys.create("alice")
        new = Secret(b"n" * 32)

        def with_sealing(sealing: SealingKeys) -> KeyChanges:
            return KeyChanges(node.keys._changes, node.loader, sealing, node.clock, node.keys._randomness)

        both = with_sealing(SealingKeys(new, [Secret(b"s" * 32)]))
        with pytest.raises(SealedAway):
            with_sealing(SealingKeys(new)).signing_secret(made[0].id)
        assert await both.reseal() == 3 and await both.reseal() == 0
        for each in made:
            assert with_sealing(SealingKeys(new)).signing_secret(each.id) == each.secret
        assert directory_of(node).keys[plain.id].sealed == ""
        assert SEALING.is_current(directory_of(node).keys[made[0].id].sealed) is False

    with_node(test)


def test_how_many_keys_and_rules_there_may_be() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        await node.users.create("bob", SECRET)
        now_ms = node.clock.now_ms()
        await refused(Code.INVALID_REQUEST, node.keys.create("alice", until_ms=now_ms))
        await refused(Code.INVALID_REQUEST, node.keys.create("alice", note="a\nb"))
        many = [rule(f"allow User:x * read topic literal t{number}") for number in range(MAX_RULES_OF_A_KEY + 1)]
        await refused(Code.LIMIT_EXCEEDED, node.keys.create("alice", rules=many))
        bad = rule("allow User:x * read cluster literal other")
        await refused(Code.INVALID_REQUEST, node.keys.create("alice", rules=[bad]))
        for _ in range(MAX_KEYS_OF_A_USER):
            await node.keys.create("alice")
        await refused(Code.LIMIT_EXCEEDED, node.keys.create("alice"))
        kept = await node.keys.create("bob")
        await node.users.delete("alice")  # all its keys go in one transaction
        assert list(directory_of(node).keys) == [kept.id]

    with_node(test)


def test_the_hour_of_the_last_use() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        made, gone = await node.keys.create("alice"), await node.keys.create("alice")
        assert await node.used.last_used_ms(made.id) is None
        revision = directory_of(node).revision
        first_ms = node.clock.now_ms()
        for _ in range(5):
            await node.authenticator.authenticate(Key(made.text), PEER)
        await node.authenticator.authenticate(Key(gone.text), PEER)
        await node.keys.delete(gone.id)
        at = node.etcd.state.snapshot("").revision
        await node.used.save()
        await node.used.save()
        assert node.etcd.state.snapshot("").revision == at + 1
        assert [entry.key for entry in node.etcd.state.snapshot(paths.USED).entries] == [paths.used_path(made.id)]
        hour_ms = first_ms - first_ms % 3_600_000
        other = await Node(node.etcd, "other").begin()
        assert await other.used.last_used_ms(made.id) == hour_ms
        other.used.note(made.id, first_ms - 7_200_000)  # a clock that is behind
        await other.used.save()
        assert await (await Node(node.etcd, "third").begin()).used.last_used_ms(made.id) == hour_ms
        node.used.note(made.id, first_ms + 3_600_000)
        assert await node.used.last_used_ms(made.id) == hour_ms + 3_600_000
        await node.used.save()
        assert await other.used.last_used_ms(made.id) == hour_ms + 3_600_000
        await node.loader.refresh()
        assert directory_of(node).revision == revision + 1  # by the deletion alone

    with_node(test)


def test_a_key_that_goes_while_its_use_is_noted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        made = await node.keys.create("alice")
        get = node.store.get

        async def get_and_lose(key: str) -> Entry | None:
            found = await get(key)
            if key == paths.used_path(made.id):
                await node.keys.delete(made.id)
            return found

        monkeypatch.setattr(node.store, "get", get_and_lose)
        node.used.note(made.id, node.clock.now_ms())
        await node.used.save()
        assert node.etcd.state.snapshot(paths.USED).entries == []

    with_node(test)


def test_names_are_apart_in_the_store_whatever_is_in_them() -> None:
    async def test(node: Node) -> None:
        for name in ("a", "a/b", "a%2Fb", "..", "é"):
            await node.users.create(name, None)
        await node.users.delete("a")
        assert sorted(directory_of(node).users) == sorted(["a/b", "a%2Fb", "..", "é"])

    with_node(test)


def test_what_is_kept_of_users_and_keys_is_what_was_first_kept() -> None:
    """The formats of version 1, which every later release reads."""

    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET, roles=["admin"])
        made = await node.keys.create("alice", rules=[], signs=True)
        kept = {entry.key: orjson.loads(entry.value) for entry in node.etcd.state.snapshot("").entries}
        assert kept["sec/rev"] == {"version": 1, "revision": 2}
        assert set(kept["sec/users/alice"]) == {"version", "name", "roles", "enabled", "certificate", "made_ms"}
        scram = kept["sec/scram/alice"]
        assert scram["version"] == 1 and set(scram["keys"]) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
        assert set(scram["keys"]["SCRAM-SHA-256"]) == {"salt", "stored_key", "server_key", "iterations"}
        key = kept[f"sec/keys/{made.id}"]
        assert set(key) == {"version", "id", "user", "digest", "made_ms", "until_ms", "rules", "sealed", "note"}
        assert key["rules"] == [] and key["sealed"].startswith("1:")

    with_node(test)
