"""API keys as PLAIN carries them: on listeners that take them, for what their users may, for as long as they last."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.doors.kafka import Client, Door, batch_of, with_door
from tests.doors.logins import PASSWORD, PLAIN, allow, guard_door, has_ended, log_in, somebody, stranger

from penstock.engine.access import Kind, Operation
from penstock.security.api_keys import NewKey
from penstock.security.guard import Guard
from penstock.security.secret import Secret

FAILED, DENIED, UNSUPPORTED = 58, 29, 33
OWN, OTHER = "alices", "others"


def run(body: Callable[[Door, Guard], Awaitable[None]], *auth: str) -> None:
    async def main(door: Door) -> None:
        guard = await guard_door(door, auth=auth)
        await guard.users.create("alice", Secret(PASSWORD.encode()))
        for name in (OWN, OTHER):
            await door.topic(name)
            await guard.rules.create([allow("alice", Operation.ALL, Kind.TOPIC, name)])
        try:
            await body(door, guard)
        finally:
            await guard.stop()

    with_door(main)


def words(key: NewKey) -> tuple[str, str]:
    """User and password, as they are said."""
    text = key.text.reveal().decode()
    return f"pk_{key.id}", text


async def outcome(door: Door, user: str, password: str, mechanism: str = PLAIN) -> int:
    client = await stranger(door)
    last: int = (await log_in(client, mechanism, user, password))[-1]["error_code"]
    return last


async def writes(client: Client, topic: str) -> int:
    code: int = (await client.produce(batch_of(b"x"), topic=topic))["error_code"]
    return code


@pytest.mark.parametrize("auth", [("key",), ("plain", "key"), ("scram", "key", "plain")])
def test_a_key_is_its_user_with_no_more_than_its_own_rights(auth: tuple[str, ...]) -> None:
    async def body(door: Door, guard: Guard) -> None:
        whole = await guard.keys.create("alice")
        narrow = await guard.keys.create("alice", rules=[allow("alice", Operation.ALL, Kind.TOPIC, OWN)])
        client = await somebody(door, words(whole)[0], PLAIN, words(whole)[1])
        assert [await writes(client, topic) for topic in (OWN, OTHER)] == [0, 0]
        client = await somebody(door, words(narrow)[0], PLAIN, words(narrow)[1])
        assert [await writes(client, topic) for topic in (OWN, OTHER)] == [0, DENIED]

    run(body, *auth)


def test_keys_and_passwords_are_taken_where_the_listener_says_so() -> None:
    async def passwords_alone(door: Door, guard: Guard) -> None:
        assert await outcome(door, *words(await guard.keys.create("alice"))) == FAILED
        assert await outcome(door, "alice", PASSWORD) == 0

    async def keys_alone(door: Door, guard: Guard) -> None:
        assert await outcome(door, "alice", PASSWORD) == FAILED

    async def neither(door: Door, guard: Guard) -> None:
        assert await outcome(door, *words(await guard.keys.create("alice"))) == UNSUPPORTED

    run(passwords_alone, "plain")
    run(keys_alone, "key")
    run(neither, "scram")


def test_what_is_no_key_of_theirs() -> None:
    async def body(door: Door, guard: Guard) -> None:
        key, other = await guard.keys.create("alice"), await guard.keys.create("alice")
        user, text = words(key)
        for wrong in (f"{text[:-1]}{'A' if text[-1] != 'A' else 'B'}", f"{user}_", user, words(other)[1], f"{text}x"):
            assert await outcome(door, user, wrong) == FAILED
            await asyncio.sleep(60)  # until who failed may try again
        assert await outcome(door, "alice", text) == FAILED, "it says whose key it is, which nobody asked"

    run(body, "key")


def test_a_user_may_be_called_like_a_key() -> None:
    async def body(door: Door, guard: Guard) -> None:
        await guard.users.create("pk_mine", Secret(PASSWORD.encode()))
        assert await outcome(door, "pk_mine", PASSWORD) == 0

    run(body, "plain", "key")


def test_a_key_that_is_deleted_or_ends_sends_away_who_came_by_it() -> None:
    async def body(door: Door, guard: Guard) -> None:
        gone, short = await guard.keys.create("alice"), await guard.keys.create("alice", lasts_ms=3_000)
        first = await somebody(door, words(gone)[0], PLAIN, words(gone)[1])
        second = await somebody(door, words(short)[0], PLAIN, words(short)[1])
        await guard.keys.delete(gone.id)
        assert await has_ended(first)
        assert await has_ended(second)
        assert await outcome(door, *words(short)) == FAILED

    run(body, "key")
