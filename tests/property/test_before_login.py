"""Whatever somebody says before it is known, it gets a clean refusal: at each listener, in each codec on the way.

EXAMPLES is how many of each are tried.
"""

import asyncio
import base64
import os
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.doors.bad_frames import damage
from tests.doors.kafka import LIMITS, Door, make, open_door
from tests.doors.kio_values import entity_of, random_entity, request_frame
from tests.doors.logins import MECHANISMS, PORT, guard_door
from tests.doors.transport import RecordingLog
from tests.unit.net.certificates import Authority
from tests.unit.security.scram_client import ScramClient

from penstock.net import connection as connection_module
from penstock.net.certificates import _facts
from penstock.net.connection import Connections
from penstock.protocols.internal.broker_certificate import names_broker
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka import session as session_module
from penstock.protocols.kafka.session import APIS, KafkaSession
from penstock.protocols.kafka_wire.guest import LOGIN_S, NotProven
from penstock.security.certificate_names import java_name, subject_of
from penstock.security.guard import Guard
from penstock.security.scram import Mechanism
from penstock.security.secret import Secret
from penstock.server.http_login import Admission, Asker, HttpLogin
from penstock.testing.virtual_clock import run_virtual

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))
BEFORE_LOGIN = ("api_versions", "sasl_handshake", "sasl_authenticate")
LARGEST_ANSWER = 4096
INTERNAL = 9094
SHORT = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=EXAMPLES * 10, deadline=None)
PLAIN = (b"\0alice\0wrong", b"alice\0alice\0wrong", b"\0\0\0", b"\0" * 3000, b"\xff\0\xff\0\xff")
SCRAM = (
    ScramClient(Mechanism.SHA_256, "alice", "wrong").first(),
    b"n,,n=broker-2,r=abcdefghijklmnopqrstuvwx",
    b"y,a=alice,n=alice,r=x,tokenauth=true",
    b"n,,n==2C=3D,r=x",
    b"c=biws,r=x,p=" + base64.b64encode(bytes(32)),
    b"n" * 5000,
)


@cache
def valid_frames() -> list[bytes]:
    random = Random(1)
    return [
        request_frame(random_entity(random, entity_of(api.name, version, "request")), 1)
        for api in APIS
        if api.name in BEFORE_LOGIN
        for version in range(api.oldest, api.newest + 1)
        for _ in range(5)
    ]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api: str, version: int, **values: Any) -> bytes:
    return framed(request_frame(make(api, version, values), 7))


def damaged(seed: int) -> bytes:
    random = Random(seed)
    return framed(damage(random, random.choice(valid_frames()), valid_frames()))


messages = st.one_of(
    st.sampled_from(PLAIN + SCRAM),
    st.binary(max_size=200),
    st.tuples(st.sampled_from(PLAIN + SCRAM), st.binary(min_size=1, max_size=3)).map(b"".join),
)
chosen = st.sampled_from(MECHANISMS).map(lambda name: request("sasl_handshake", 1, mechanism=name))
steps = messages.map(lambda said: request("sasl_authenticate", 2, auth_bytes=said))
pieces = st.one_of(
    chosen,
    st.text(max_size=60).map(lambda name: request("sasl_handshake", 1, mechanism=name)),
    steps,
    messages.map(lambda said: request("sasl_authenticate", 0, auth_bytes=said)),
    st.text(max_size=60).map(lambda name: request("api_versions", 3, client_software_name=name)),
    st.integers(0, 1 << 32).map(damaged),
    st.binary(max_size=60).map(framed),
    st.binary(max_size=60),
)
said_there = st.one_of(
    st.lists(pieces, min_size=1, max_size=8),
    st.tuples(chosen, steps, st.lists(steps, max_size=2)).map(lambda said: [*said[:2], *said[2]]),
)


@contextmanager
def no_bugs() -> Iterator[None]:
    log = RecordingLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "log_", log)
        patch.setattr(session_module, "log_", log)
        yield
    assert not log.bugs, log.bugs[0]


async def converse(door: Door, port: int, said: list[bytes]) -> bytes:
    """All that is answered, up to the end of the connection, which comes by itself."""
    stream = await door.network.connect("broker", port)
    heard = bytearray()

    async def listen() -> None:
        try:
            while True:
                heard.extend(await stream.receive_exactly(1))
        except (OSError, asyncio.IncompleteReadError):
            return

    listening = asyncio.ensure_future(listen())
    for piece in said:
        with suppress(OSError):  # it has been parted with
            stream.send(piece)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(LOGIN_S + 5):
        await listening
    return bytes(heard)


def check_answers(heard: bytes, said: list[bytes]) -> None:
    answers = 0
    while heard:
        (size,) = struct.unpack_from(">i", heard)
        assert 4 <= size <= LARGEST_ANSWER
        assert len(heard) >= size + 4, "half an answer"
        heard, answers = heard[size + 4 :], answers + 1
    assert answers <= sum(len(piece) for piece in said) // 12 + 1


async def guarded(body: Callable[[Door, Guard], Awaitable[None]]) -> None:
    door = await open_door(1)
    guard = await guard_door(door)
    await guard.users.create("alice", Secret(b"secret"))
    try:
        await body(door, guard)
    finally:
        await guard.stop()
    assert not door.failures


@SHORT
@given(said_there)
def test_at_the_listener_for_clients(said: list[bytes]) -> None:
    async def body(door: Door, guard: Guard) -> None:
        check_answers(await converse(door, PORT, said), said)
        assert not guard._inside

    with no_bugs():
        run_virtual(lambda: guarded(body), 1)


@SHORT
@given(said_there)
def test_at_the_listener_for_brokers(said: list[bytes]) -> None:
    async def body() -> None:
        door = await open_door(1)
        reception = Reception(door.engine, door.clock, Identity("correct horse", "broker 1"), lambda: (2,))

        def receive(connection: Any) -> KafkaSession:
            return KafkaSession(door.context, connection, door.clock, reception.receive(connection))

        connections = Connections(LIMITS, door.stats, door.clock, receive, asyncio.get_running_loop().call_soon)
        await door.network.listen("broker", INTERNAL, connections.accept)
        check_answers(await converse(door, INTERNAL, said), said)
        assert not door.failures

    with no_bugs():
        run_virtual(body, 1)


@LONG
@given(st.lists(messages, min_size=1, max_size=3))
def test_what_a_broker_says_first(said: list[bytes]) -> None:
    login = Identity("correct horse", "broker 1").make_login()
    assert login.choose(login.mechanisms[0])
    for message in said:
        try:
            answer = asyncio.run(login.step(message))
        except NotProven:
            break
        assert len(answer) <= LARGEST_ANSWER + 200
    assert not login.is_done


schemes = st.sampled_from(["Basic", "basic", "BEARER", "Bearer ", "Digest", "", " ", "Basic\t", "B\u0130sic"])
credentials = st.one_of(
    st.text(max_size=100),
    st.binary(max_size=100).map(lambda said: base64.b64encode(said).decode()),
    st.binary(max_size=60).map(lambda said: base64.b64encode(b"alice:" + said).decode()),
    st.text("=+/abcXYZ012 ", max_size=30),
    st.text("pk_0a", max_size=70),
    st.just("A" * 5000),
)


@SHORT
@given(st.lists(st.tuples(schemes, credentials), min_size=1, max_size=20))
def test_in_the_header_that_says_who_asks(said: list[tuple[str, str]]) -> None:
    async def body(door: Door, guard: Guard) -> None:
        access = door.engine.access
        for ways in (("basic", "key"), ("key",), ("basic",)):
            login = HttpLogin("http", ways, lambda: guard, lambda: access, lambda *_: None, is_closed=True)
            for scheme, proof in said:
                asker = Asker("10.0.0.9", f"{scheme} {proof}")
                assert await login.admit(asker) is Admission.UNKNOWN
                assert not await login.knows(asker)

    run_virtual(lambda: guarded(body), 1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    authority = Authority.make(tmp_path_factory.mktemp("certificates") / "ours")
    files = authority.sign("alice", "IP:127.0.0.1,DNS:localhost,URI:penstock:broker")
    return ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())


@LONG
@example(changes=[(12, 1)])  # a version that there is not
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
def test_in_a_certificate(certificate: bytes, changes: list[tuple[int, int]]) -> None:
    """What TLS has let through was signed by somebody who is trusted, which does not say that it makes sense."""
    changed = bytearray(certificate)
    for at, byte in changes:
        changed[at % len(changed)] = byte
    said = bytes(changed)
    assert names_broker(said) in (False, True)
    for read in (lambda: java_name(subject_of(said)), lambda: _facts(said)):
        with suppress(ValueError):
            read()
