"""A listener that takes certificates and passwords: who logs in is who it logs in as, whatever certificate it shows.

The certificate names carol. Each of the two may write to a topic of its own, by which one sees who asks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from tests.doors.kafka import Client, Door, batch_of, fetch_values, make, produce_values, with_door
from tests.doors.logins import MECHANISMS, PASSWORD, PLAIN, SHA_256, allow, guard_door, has_ended, log_in, stranger
from tests.unit.net.certificates import Authority
from tests.unit.security.scram_client import ScramClient

from penstock.engine.access import Kind, Operation
from penstock.protocols.kafka_wire.guest import LARGEST_BEFORE_LOGIN, LOGIN_S
from penstock.security.guard import Guard
from penstock.security.scram import Mechanism
from penstock.security.secret import Secret
from penstock.server.config import ListenerTls
from penstock.testing.memory_network import MemoryTransport

FAILED, ILLEGAL_STATE, NOT_SPOKEN = 58, 34, 33
DENIED = 29
AUTH = ("certificate", "scram", "plain")
NAMES = ListenerTls(Path("shown"), Path("shown.key"), client_auth="request", names="RULE:CN=(.*)/$1/")


@pytest.fixture(scope="module")
def carols(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    files = Authority.make(tmp_path_factory.mktemp("ca") / "ours").sign("carol")
    return load_pem_x509_certificate(Path(files.certificate).read_bytes()).public_bytes(Encoding.DER)


@pytest.fixture
def shown(carols: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects shows carol's certificate."""
    monkeypatch.setattr(MemoryTransport, "certificate", carols)
    monkeypatch.setattr(MemoryTransport, "certified", True)


def run(body: Callable[[Door, Guard], Awaitable[None]], *, auth: tuple[str, ...] = AUTH) -> None:
    async def main(door: Door) -> None:
        guard = await guard_door(door, auth=auth, tls=NAMES)
        await guard.users.create("alice", Secret(PASSWORD.encode()))
        for user in ("alice", "carol"):
            await door.topic(f"{user}s")
            await guard.rules.create([allow(user, Operation.ALL, Kind.TOPIC, f"{user}s")])
        try:
            await body(door, guard)
        finally:
            await guard.stop()

    with_door(main)


async def who(client: Client) -> str:
    codes = {
        user: (await client.produce(batch_of(b"x"), topic=f"{user}s"))["error_code"] for user in ("alice", "carol")
    }
    assert sorted(codes.values()) == [0, DENIED]
    return next(user for user, code in codes.items() if code == 0)


def inside(guard: Guard) -> list[str]:
    return [each.subject.principal for each in guard._inside.values()]


def end_of(door: Door, topic: str) -> int:
    return door.engine.topics.partition(topic, 0).end_offset


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
@pytest.mark.parametrize("is_certified", [True, False])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_logs_in_is_who_it_logs_in_as_or_nobody(
    mechanism: str, is_certified: bool, password: str, request: pytest.FixtureRequest
) -> None:
    if is_certified:
        request.getfixturevalue("shown")

    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        await client.ask("api_versions", 0)
        assert inside(guard) == (["User:carol"] if is_certified else [])
        last = (await log_in(client, mechanism, "alice", password))[-1]
        if password == PASSWORD:
            assert last["error_code"] == 0
            assert await who(client) == "alice"
            assert inside(guard) == ["User:alice"]
            return
        assert last["error_code"] == FAILED
        assert await has_ended(client)
        assert inside(guard) == []

    run(body)


def test_who_does_not_log_in_is_whom_the_certificate_names(shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        await asyncio.sleep(2 * LOGIN_S)
        assert (await client.ask("api_versions", 0))["error_code"] == 0
        assert (await client.produce(batch_of(b"x" * 2 * LARGEST_BEFORE_LOGIN), topic="carols"))["error_code"] == 0
        assert await who(client) == "carol"

    run(body)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_was_served_by_its_certificate_may_log_in(mechanism: str, shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        assert await who(client) == "carol"
        assert (await log_in(client, mechanism, "alice"))[-1]["error_code"] == 0
        assert await who(client) == "alice"
        assert (await client.produce(batch_of(b"x" * 2 * LARGEST_BEFORE_LOGIN), topic="alices"))["error_code"] == 0
        assert (await client.ask("sasl_handshake", 1, mechanism=mechanism))["error_code"] == ILLEGAL_STATE
        assert await who(client) == "alice"
        await asyncio.sleep(2 * LOGIN_S)
        assert await who(client) == "alice"

    run(body)


@pytest.mark.parametrize("step", ["mechanism", "first message", "failure"])
@pytest.mark.parametrize("api", ["metadata", "produce"])
def test_nothing_is_answered_once_a_login_has_begun(step: str, api: str, shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        assert await who(client) == "carol"
        end = end_of(door, "carols")
        await client.ask("sasl_handshake", 1, mechanism=SHA_256)
        assert inside(guard) == []
        if step == "first message":
            first = ScramClient(Mechanism.SHA_256, "alice", PASSWORD).first()
            await client.ask("sasl_authenticate", 2, auth_bytes=first)
        elif step == "failure":
            client.send(make("sasl_authenticate", 2, {"auth_bytes": b"nonsense"}))
        values = {"topics": None} if api == "metadata" else produce_values(batch_of(b"x"), "carols")
        client.send(make(api, 9, values))
        assert await has_ended(client)
        assert end_of(door, "carols") == end
        assert inside(guard) == []

    run(body)


def test_what_is_said_along_with_a_login_is_not_served(shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
        client.send(make("sasl_authenticate", 2, {"auth_bytes": f"\0alice\0{PASSWORD}".encode()}))
        client.send(make("produce", 9, produce_values(batch_of(b"x"), "carols")))
        assert (await client.receive("sasl_handshake", 1))[1]["error_code"] == 0
        assert await has_ended(client)
        assert end_of(door, "carols") == 0

    run(body)


def test_a_login_begins_when_all_is_answered(shown: None) -> None:
    """What was asked in the certificate's name is not answered to somebody else."""

    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        client.send(make("fetch", 12, fetch_values({"carols": {0: 0}}, max_wait=60_000)))
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
        assert await has_ended(client)

    run(body)


@pytest.mark.parametrize("api", ["sasl_handshake", "sasl_authenticate"])
def test_a_login_that_begins_wrongly_has_begun(api: str, shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        if api == "sasl_handshake":
            assert (await client.ask(api, 1, mechanism="GSSAPI"))["error_code"] == NOT_SPOKEN
        else:
            assert (await client.ask(api, 2, auth_bytes=b"\0alice\0secret"))["error_code"] == FAILED
        assert await has_ended(client)

    run(body)


def test_a_login_that_has_begun_has_ten_seconds_and_little_memory(shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        slow, large = await stranger(door), await stranger(door)
        await asyncio.sleep(2 * LOGIN_S)
        for each in (slow, large):
            await each.ask("sasl_handshake", 1, mechanism=SHA_256)
        large.send(make("sasl_authenticate", 2, {"auth_bytes": bytes(LARGEST_BEFORE_LOGIN)}))
        assert await has_ended(large)
        await asyncio.sleep(LOGIN_S - 2)
        assert await has_ended(slow)

    run(body)


def test_it_ends_with_the_user_and_not_with_whom_the_certificate_names(shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client, other = await stranger(door), await stranger(door)
        assert (await log_in(client, SHA_256, "alice"))[-1]["error_code"] == 0
        await guard.users.create("carol", Secret(b"secret"))  # who may not come by a certificate
        assert await has_ended(other)
        assert await who(client) == "alice"
        await guard.users.delete("alice")
        begun = door.clock.monotonic()
        assert await has_ended(client)
        assert door.clock.monotonic() - begun < 1

    run(body)


def test_where_certificates_alone_are_taken_no_login_is_spoken(shown: None) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client, other = await stranger(door), await stranger(door)
        assert (await client.ask("sasl_handshake", 1, mechanism=PLAIN))["error_code"] == NOT_SPOKEN
        assert await has_ended(client)
        assert await who(other) == "carol"

    run(body, auth=("certificate",))
