"""The end of a connection after a refused login: late enough for the answer to be read, and never put off."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from tests.doors.kafka import Client, Door, make, with_door
from tests.doors.logins import MECHANISMS, guard_door, has_ended, log_in, stranger

from penstock.protocols.kafka_wire.guest import PARTING_S
from penstock.security.guard import Guard

FAILED = 58


def run(body: Callable[[Door, Guard], Awaitable[None]]) -> None:
    async def main(door: Door) -> None:
        guard = await guard_door(door)
        try:
            await body(door, guard)
        finally:
            await guard.stop()

    with_door(main)


async def ends_after(door: Door, client: Client) -> float:
    began_s = door.clock.monotonic()
    assert await has_ended(client)
    return door.clock.monotonic() - began_s


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_may_read_why_before_the_end(mechanism: str) -> None:
    """kafka-python drops what it reads together with the end."""

    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        assert (await log_in(client, mechanism, "nobody"))[-1]["error_code"] == FAILED
        assert PARTING_S / 2 < await ends_after(door, client) < PARTING_S * 2

    run(body)


def test_what_is_said_meanwhile_puts_nothing_off() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        assert (await log_in(client, "PLAIN", "nobody"))[-1]["error_code"] == FAILED
        began_s = door.clock.monotonic()
        with suppress(OSError):
            while door.clock.monotonic() - began_s < PARTING_S * 10:
                client.send(make("sasl_handshake", 1, {"mechanism": "PLAIN"}))
                await asyncio.sleep(PARTING_S / 4)
        assert door.clock.monotonic() - began_s < PARTING_S * 3

    run(body)
