"""One answer to who somebody is, and one error for all that is wrong; who guesses, and what has gone meanwhile."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security.scram_client import ScramClient
from tests.unit.security.security_world import PEER, Node, at_once
from tests.unit.security.test_ruleset import rule
from tests.unit.security.test_users import SECRET, log_in, with_node

from penstock.engine.access import Subject
from penstock.security import passwords as module
from penstock.security.api_keys import make_key
from penstock.security.authentication import Certificate, Credentials, Key, Peer, Plain, Proof, parse_plain
from penstock.security.backoff import FREE_FAILURES
from penstock.security.methods import Method
from penstock.security.passwords import Passwords
from penstock.security.refusal import TEXT, NotAuthenticated
from penstock.security.rules import check_rule
from penstock.security.scram import Mechanism, ScramProof, derive
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual


async def refused(node: Node, credentials: Credentials, peer: Peer = PEER) -> str:
    """The reason for our logs; what a peer is told is always the same."""
    with pytest.raises(NotAuthenticated) as caught:
        await node.authenticator.authenticate(credentials, peer)
    error = caught.value
    assert (str(error), error.help) == (TEXT, NotAuthenticated("").help)
    return error.reason


def test_each_proof_makes_its_subject() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        key = await node.keys.create("alice")
        alice = ("User:alice", *PEER)
        found = await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        assert found == Subject(*alice, Method.PASSWORD)
        assert await node.authenticator.authenticate(Key(key.text), PEER) == Subject(*alice, Method.API_KEY, key.id)
        assert await log_in(node, "alice", "pencil") == Subject(*alice, Method.SCRAM)
        by_certificate = await node.authenticator.authenticate(Certificate("CN=x,O=y"), PEER)
        assert by_certificate == Subject("User:CN=x,O=y", *PEER, Method.CERTIFICATE)
        for subject in (found, by_certificate, Subject()):
            assert node.authenticator.is_valid(subject)
            assert node.authenticator.is_valid(subject._replace(until_ms=node.clock.now_ms() + 1))
            assert not node.authenticator.is_valid(subject._replace(until_ms=node.clock.now_ms()))

    with_node(test)


def test_whatever_is_wrong_one_thing_is_told() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        await node.users.create("keyless", None)
        await node.users.create("off", SECRET)
        off_key = await node.keys.create("off")
        await node.users.alter("off", is_enabled=False)
        key = await node.keys.create("alice")
        changed = Secret(key.text.reveal()[:-1] + (b"A" if key.text.reveal()[-1:] != b"A" else b"B"))
        everything: list[Credentials] = [
            Plain("alice", Secret("wrong")),
            Plain("alice", Secret("x" * 5000)),
            Plain("nobody", SECRET),
            Plain("keyless", SECRET),
            Plain("off", SECRET),
            Plain("\ud800", SECRET),
            Plain("a" * 10_000, SECRET),
            Plain("", SECRET),
            Key(changed),
            Key(Secret("nonsense")),
            Key(make_key(node.keys._randomness).text),
            Key(off_key.text),
            Certificate("alice"),
            Certificate("*"),
            Certificate("ANONYMOUS"),
            Certificate("a\nb"),
            Certificate(""),
            Certificate("x" * 2000),
            Proof(ScramProof("alice", Mechanism.SHA_256), 999),
            Proof(ScramProof("off", Mechanism.SHA_256), 1),
        ]
        reasons = [
            await refused(node, credentials, PEER._replace(host=f"10.0.0.{number}"))
            for number, credentials in enumerate(everything)
        ]
        assert all(reasons)
        assert all("pencil" not in reason and key.secret.reveal().decode() not in reason for reason in reasons)

    with_node(test)


def test_a_certificate_is_a_users_only_where_that_was_said() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        assert "may not come by one" in await refused(node, Certificate("alice"))
        await node.users.alter("alice", may_use_certificate=True)
        subject = await node.authenticator.authenticate(Certificate("alice"), PEER)
        assert node.authenticator.is_valid(subject)
        await node.users.alter("alice", may_use_certificate=False)
        assert not node.authenticator.is_valid(subject)
        await node.users.delete("alice")
        assert node.authenticator.is_valid(subject)  # now it is a name like any other

    with_node(test)


def test_who_guesses_waits_and_nobody_else_does() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        key = await node.keys.create("alice")
        elsewhere = Peer("10.0.0.2", "kafka")
        for user in ("alice", "nobody"):
            for _ in range(FREE_FAILURES):
                assert "too early" not in await refused(node, Plain(user, Secret("wrong")))
            assert "too early" in await refused(node, Plain(user, SECRET))
        assert await log_in(node, "alice", "pencil") is None
        assert await node.authenticator.authenticate(Plain("alice", SECRET), elsewhere)
        assert await node.authenticator.authenticate(Key(key.text), PEER)
        wrong = Key(Secret(key.text.reveal()[:-2] + b"xx"))
        for _ in range(FREE_FAILURES):
            assert "too early" not in await refused(node, wrong)
        assert "too early" in await refused(node, Key(key.text))
        assert await node.authenticator.authenticate(Key(key.text), elsewhere)
        await asyncio.sleep(1.01)
        assert await log_in(node, "alice", "pencil")
        assert await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        assert await node.authenticator.authenticate(Key(key.text), PEER)

    with_node(test)


@pytest.mark.parametrize("way", ["plain", "scram", "key"])
def test_who_is_right_in_the_end_begins_anew(way: str) -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        key = await node.keys.create("alice")
        for _ in range(3):
            for _ in range(FREE_FAILURES - 1):
                if way == "key":
                    await refused(node, Key(Secret(key.text.reveal()[:-2] + b"xx")))
                else:
                    await refused(node, Plain("alice", Secret("wrong")))
            if way == "scram":
                assert await log_in(node, "alice", "pencil")
            else:
                right = Key(key.text) if way == "key" else Plain("alice", SECRET)
                assert await node.authenticator.authenticate(right, PEER)

    with_node(test)


def test_to_know_the_password_of_one_who_may_not_log_in_is_a_failure_like_others() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        await node.users.alter("alice", is_enabled=False)
        for _ in range(FREE_FAILURES):
            assert "too early" not in await refused(node, Plain("alice", SECRET))
        assert "too early" in await refused(node, Plain("alice", SECRET))
        await node.users.create("bob", SECRET)
        await node.users.alter("bob", is_enabled=False)
        for _ in range(FREE_FAILURES):
            assert await log_in(node, "bob", "pencil") is None
        assert "too early" in await refused(node, Plain("bob", SECRET))

    with_node(test)


def test_failures_of_scram_count_too_and_early_ones_do_not() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        for user in ("alice", "nobody"):
            for _ in range(FREE_FAILURES):
                assert await log_in(node, user, "wrong") is None
            login = node.authenticator.begin_scram(Mechanism.SHA_256, PEER)
            with pytest.raises(NotAuthenticated):  # before anything is told
                await login.step(ScramClient(Mechanism.SHA_256, user, "pencil").first())
            for _ in range(20):
                assert await log_in(node, user, "pencil") is None
        await asyncio.sleep(1.01)
        assert await log_in(node, "alice", "pencil")

    with_node(test)


@pytest.mark.parametrize("mechanism", [None, *Mechanism])
def test_guesses_at_the_same_time_are_as_many_as_one_after_the_other(mechanism: Mechanism | None) -> None:
    """However many exchanges are open, or passwords wait to be salted, before the first one has failed."""

    async def test() -> None:
        held = asyncio.Event()

        async def holding(function: Callable, *arguments: Any) -> Any:
            if function is derive:
                await held.wait()
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=holding).begin()
        await node.users.create("alice", SECRET)

        async def guess(password: str) -> str:
            try:
                if mechanism is None:
                    await node.authenticator.authenticate(Plain("alice", Secret(password)), PEER)
                    return ""
                login = node.authenticator.begin_scram(mechanism, PEER)
                client = ScramClient(mechanism, "alice", password)
                final = client.final(await login.step(client.first()))
                await held.wait()
                await login.step(final)
                with pytest.raises(NotAuthenticated):
                    await login.step(final)
            except NotAuthenticated as error:
                return error.reason
            return ""

        guesses = [asyncio.ensure_future(guess("wrong")) for _ in range(20)]
        await asyncio.sleep(0.1)
        held.set()
        told = await asyncio.gather(*guesses)
        assert sum("wrong password" in reason for reason in told) == FREE_FAILURES
        assert sum("too early" in reason for reason in told) == 20 - FREE_FAILURES
        assert "too early" in await guess("pencil")
        await asyncio.sleep(1.01)
        held.clear()
        right = [asyncio.ensure_future(guess("pencil")) for _ in range(20)]
        await asyncio.sleep(0.1)
        held.set()
        assert set(await asyncio.gather(*right)) == {""}, "who is right is let in as often as it comes"

    run_virtual(test, 1)


def test_an_exchange_that_came_too_early_is_over() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        login, client = (
            node.authenticator.begin_scram(Mechanism.SHA_256, PEER),
            ScramClient(Mechanism.SHA_256, "alice", "pencil"),
        )
        final = client.final(await login.step(client.first()))
        for _ in range(FREE_FAILURES):
            await refused(node, Plain("alice", Secret("wrong")))
        with pytest.raises(NotAuthenticated):
            await login.step(final)
        await asyncio.sleep(1.01)
        with pytest.raises(NotAuthenticated):
            await login.step(final)
        assert login.subject is None

    with_node(test)


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::{}"])
def test_passwords_from_one_address_leave_room_for_others(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_OF_ONE", 10)

    async def test() -> None:
        held = asyncio.Event()

        async def holding(function: Callable, *arguments: Any) -> Any:
            if function is derive:
                await held.wait()
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=holding).begin()
        await node.users.create("alice", SECRET)
        flood = [
            asyncio.ensure_future(refused(node, Plain(f"x{number}", SECRET), Peer(host.format(number), "kafka")))
            for number in range(30)
        ]
        await asyncio.sleep(0.1)
        assert sum(each.done() for each in flood) == 20
        elsewhere = asyncio.ensure_future(node.authenticator.authenticate(Plain("alice", SECRET), Peer("b", "kafka")))
        await asyncio.sleep(0.1)
        held.set()
        assert (await elsewhere).principal == "User:alice"
        await asyncio.gather(*flood)
        assert not node.passwords._waiting

    run_virtual(test, 1)


def test_what_is_looked_at_early_tells_nothing() -> None:
    """Else a guess that is right could be told by how quickly it is refused: its password is remembered."""

    async def test() -> None:
        calls: list[object] = []

        async def counting(function: Callable, *arguments: Any) -> Any:
            calls.append(function)
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=counting).begin()
        await node.users.create("alice", SECRET)
        calls.clear()
        for _ in range(FREE_FAILURES):
            await refused(node, Plain("alice", Secret("wrong")))
        assert calls.count(derive) == FREE_FAILURES
        for password in (SECRET, Secret("wrong")):
            await refused(node, Plain("alice", password))
        assert calls.count(derive) == FREE_FAILURES

    run_virtual(test, 1)


def test_a_password_is_salted_once_per_while_and_for_who_is_not_there_too() -> None:
    async def test() -> None:
        calls: list[tuple] = []

        async def counting(function: Callable, *arguments: Any) -> Any:
            if function is derive:
                calls.append((arguments[0], arguments[3]))
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=counting).begin()
        await node.users.create("alice", SECRET)
        for _ in range(5):
            await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        assert len(calls) == 1
        await refused(node, Plain("nobody", SECRET))
        assert len(calls) == 2 and calls[0] == calls[1]
        await refused(node, Plain("alicepencil"[:5], Secret("wrong")))
        await refused(node, Plain("alicepen", Secret("cil")))  # not what is remembered of alice
        assert len(calls) == 4
        await asyncio.sleep(module.REMEMBERED_S + 1)
        await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        assert len(calls) == 5
        await node.users.set_password("alice", SECRET)  # the same one, and yet another
        await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        assert len(calls) == 6
        await node.users.set_password("alice", Secret("pen"))
        await refused(node, Plain("alice", SECRET))

    run_virtual(test, 1)


def test_what_is_remembered_is_of_one_user() -> None:
    """Even if two were last changed at the same revision."""

    async def test() -> None:
        passwords = Passwords(VirtualClock(), Random(1), at_once)
        mechanism = Mechanism.SHA_256
        alice, other = derive(mechanism, b"pencil", b"1", 4096), derive(mechanism, b"x", b"2", 4096)
        assert await passwords.check("alice", SECRET, mechanism, alice, 5)
        assert not await passwords.check("alicepen", Secret("cil"), mechanism, other, 5)
        assert not await passwords.check("al", Secret("icepencil"), mechanism, other, 5)

    run_virtual(test, 1)


def test_few_passwords_are_salted_at_a_time_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)

    async def test() -> None:
        held: list[asyncio.Future] = []

        async def holding(function: Callable, *arguments: Any) -> Any:
            if function is derive:
                held.append(asyncio.get_running_loop().create_future())
                await held[-1]
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=holding).begin()
        await node.users.create("alice", SECRET)
        logins = [
            asyncio.ensure_future(node.authenticator.authenticate(Plain("alice", SECRET), Peer(f"10.0.1.{number}", "")))
            for number in range(15)
        ]
        await asyncio.sleep(1)
        assert len(held) == module.MAX_AT_ONCE
        assert sum(login.done() for login in logins) == 5
        while not all(login.done() for login in logins):
            for each in held:
                if not each.done():
                    each.set_result(None)
            await asyncio.sleep(0.1)
        done = await asyncio.gather(*logins, return_exceptions=True)
        assert sum(isinstance(each, Subject) for each in done) == 10
        assert {each.reason for each in done if isinstance(each, NotAuthenticated)} == {
            "too many passwords wait to be checked"
        }
        assert await node.authenticator.authenticate(Plain("alice", SECRET), PEER)

    run_virtual(test, 1)


@pytest.mark.parametrize("gone", ["delete", "disable", "password", "again"])
def test_who_goes_while_it_proves_itself_is_not_let_in(gone: str) -> None:
    async def test() -> None:
        held: list[asyncio.Future] = []

        async def holding(function: Callable, *arguments: Any) -> Any:
            if function is derive and not held:
                held.append(asyncio.get_running_loop().create_future())
                await held[0]
            return function(*arguments)

        node = await Node(SimulatedEtcd(max_delay_s=0.0), in_thread=holding).begin()
        await node.users.create("alice", SECRET)
        plain = asyncio.ensure_future(node.authenticator.authenticate(Plain("alice", SECRET), PEER))
        await asyncio.sleep(0.1)
        login = node.authenticator.begin_scram(Mechanism.SHA_256, PEER)
        client = ScramClient(Mechanism.SHA_256, "alice", "pencil")
        final = client.final(await login.step(client.first()))
        if gone == "disable":
            await node.users.alter("alice", is_enabled=False)
        elif gone == "password":
            await node.users.set_password("alice", Secret("pen"))
        else:
            await node.users.delete("alice")
            if gone == "again":
                await node.users.create("alice", SECRET)
        held[0].set_result(None)
        for waiting in (plain, login.step(final)):
            with pytest.raises(NotAuthenticated):
                await waiting
        assert login.subject is None

    run_virtual(test, 1)


def test_a_user_is_not_a_delegation_token() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        for extensions, lets_in in ((",tokenauth=true", False), (",tokenauth=false", True)):
            login = node.authenticator.begin_scram(Mechanism.SHA_256, PEER)
            client = ScramClient(Mechanism.SHA_256, "alice", "pencil", extensions=extensions)
            final = client.final(await login.step(client.first()))
            if lets_in:
                assert client.believes(await login.step(final)) and login.subject is not None
                continue
            with pytest.raises(NotAuthenticated):
                await login.step(final)

    with_node(test)


def test_a_login_that_is_done_is_done() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        login, client = (
            node.authenticator.begin_scram(Mechanism.SHA_512, PEER),
            ScramClient(Mechanism.SHA_512, "alice", "pencil"),
        )
        await login.step(client.final(await login.step(client.first())))
        assert login.subject is not None
        with pytest.raises(NotAuthenticated):
            await login.step(client.first())
        assert login.subject is None

    with_node(test)


def test_nobody_logs_in_by_rules_that_are_too_old_or_not_there() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(max_delay_s=0.0)
        node = Node(etcd)
        key = make_key(node.keys._randomness)
        everything: list[Credentials] = [
            Plain("alice", SECRET),
            Key(key.text),
            Certificate("CN=x"),
            Proof(ScramProof("alice", Mechanism.SHA_256), 999),
        ]
        for credentials in everything:
            assert "not loaded" in await refused(node, credentials)
        assert not node.authenticator.is_valid(Subject("User:alice", method=Method.SCRAM))
        await node.begin()
        await node.users.create("alice", SECRET)
        subject = await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        etcd.down = True
        await asyncio.sleep(3590)
        await node.authenticator.authenticate(Plain("alice", SECRET), PEER)
        await asyncio.sleep(20)
        for credentials in everything:
            assert "old" in await refused(node, credentials)
        assert await log_in(node, "alice", "pencil") is None
        assert node.authenticator.is_valid(subject)  # who is in stays
        etcd.down = False
        await node.loader.refresh()
        await node.authenticator.authenticate(Plain("alice", SECRET), PEER)

    run_virtual(test, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=4), st.binary(max_size=120))
def test_whatever_is_said_there_is_one_error(steps: list[bytes], said: bytes) -> None:
    async def test(node: Node) -> None:
        login = node.authenticator.begin_scram(Mechanism.SHA_256, PEER)
        for step in steps:
            with suppress(NotAuthenticated):
                await login.step(step)
        assert login.subject is None
        await refused(node, Key(Secret(said)))
        try:
            plain = parse_plain(said)
        except NotAuthenticated:
            return
        await refused(node, plain)

    with_node(test)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_every_name_of_a_certificate_is_a_principal_or_refused(name: str) -> None:
    async def test(node: Node) -> None:
        try:
            subject = await node.authenticator.authenticate(Certificate(name), PEER)
        except NotAuthenticated:
            return
        check_rule(rule("deny x * all topic literal *")._replace(principal=subject.principal))
        assert subject.principal == f"User:{name}" != "User:*"

    with_node(test)
