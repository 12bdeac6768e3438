"""A listener beside a door's that asks who somebody is, and clients that tell it: also what no client should."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from penstock.engine.access import Kind, Operation
from penstock.security.guard import Guard
from penstock.security.modes import Mode
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.scram import Mechanism
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.server.config import Address, Listener, ListenerTls
from penstock.server.doors.kafka import make_entrance
from penstock.testing.memory_metadata import MemoryStore
from tests.doors.kafka import LIMITS, Client, Door
from tests.unit.security.scram_client import ScramClient

PORT = 9093
PASSWORD = "secret"  # noqa: S105 - nothing that it opens lasts
PLAIN, SHA_256, SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SHA_256, SHA_512)
_HASH_S = 0.002
_PATIENCE_S = 5  # less than a login may take: that ends a connection, too


class Hashing:
    """What salts passwords in virtual time, and how many are salted at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.began = asyncio.Event()

    async def __call__(self, function: Any, *arguments: Any) -> Any:
        self.now += 1
        self.began.set()
        self.most = max(self.most, self.now)
        await asyncio.sleep(_HASH_S)
        self.now -= 1
        return function(*arguments)


async def guard_door(
    door: Door,
    *,
    mode: Mode = Mode.CLOSED,
    store: Any = None,
    auth: tuple[str, ...] = ("scram", "plain"),
    tls: ListenerTls | None = None,
) -> Guard:
    """Users and rules in force, and a listener at `PORT` where everybody has to log in."""
    guard = Guard(
        store if store is not None else MemoryStore(),
        door.engine.access,
        door.clock,
        Random(1),
        door.disk.run,
        door.failures.append,
        mode=mode,
        supers=(),
        sealing=SealingKeys(Secret(b"s" * 32)),
    )
    guard.authenticator._passwords._in_thread = Hashing()
    await guard.start()
    door.context.guard = guard
    house: Any = SimpleNamespace(
        context=door.context,
        guard=guard,
        clock=door.clock,
        stats=door.stats,
        load_certificates=lambda listener: None,
        network=door.network,
        crowds={},
        client_limits=lambda: LIMITS,
    )
    await make_entrance(house, Listener("secure", "kafka", Address("broker", PORT), auth=auth, tls=tls)).open()
    return guard


def hashing(guard: Guard) -> Hashing:
    found = guard.authenticator._passwords._in_thread
    assert isinstance(found, Hashing)
    return found


async def stranger(door: Door, **options: Any) -> Client:
    """Somebody at that listener who has not said who it is."""
    return Client(await door.network.connect("broker", PORT, **options))


async def log_in(
    client: Client, mechanism: str, user: str, password: str = PASSWORD, *, nonce: str = "rOprNGfwEbeRWgbNEkqO"
) -> list[dict[str, Any]]:
    """All answers to an exchange as clients do it, up to the first that is an error."""
    answers = [await client.ask("sasl_handshake", 1, mechanism=mechanism)]
    if answers[0]["error_code"]:
        return answers
    if mechanism == PLAIN:
        said = b"\0" + user.encode() + b"\0" + password.encode()
        return [*answers, await client.ask("sasl_authenticate", 2, auth_bytes=said)]
    scram = ScramClient(Mechanism(mechanism), user, password, nonce=nonce)
    answers.append(await client.ask("sasl_authenticate", 2, auth_bytes=scram.first()))
    if not answers[-1]["error_code"]:
        answers.append(await client.ask("sasl_authenticate", 2, auth_bytes=scram.final(answers[-1]["auth_bytes"])))
        assert answers[-1]["error_code"] or scram.believes(answers[-1]["auth_bytes"])
    return answers


async def somebody(door: Door, user: str, mechanism: str = SHA_256, password: str = PASSWORD, **options: Any) -> Client:
    """A client that is logged in."""
    client = await stranger(door, **options)
    answers = await log_in(client, mechanism, user, password)
    assert not answers[-1]["error_code"], answers
    return client


def allow(
    principal: str,
    operation: Operation,
    kind: Kind,
    name: str,
    *,
    pattern: Pattern = Pattern.LITERAL,
    effect: Effect = Effect.ALLOW,
) -> Rule:
    return Rule(f"User:{principal}", "*", operation, kind, pattern, name, effect)


async def has_ended(client: Client) -> bool:
    """Whether the broker has ended the connection, and said nothing more before."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await client.stream.receive_exactly(1)
    except TimeoutError:
        return False
    except (OSError, asyncio.IncompleteReadError):
        return True
    return False
