"""A broker's guard: who is inside is sent away when the user, the key or the key's time is gone."""

import asyncio
from random import Random

from tests.unit.security.security_world import at_once

from penstock.engine.access import Access, Subject
from penstock.security.authentication import Key, Peer
from penstock.security.guard import FIRST_ADMIN, Guard
from penstock.security.modes import Mode
from penstock.security.plain import Plain
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

PEER = Peer("10.0.0.1", "kafka")
PASSWORD = Secret(b"correct horse")


class World:
    """One broker's guard, and what became of those inside."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.failures: list[BaseException] = []
        self.store = MemoryStore()
        self.guard = Guard(
            self.store,
            Access(),
            self.clock,
            Random(1),
            at_once,
            self.failures.append,
            mode=Mode.CLOSED,
            supers=(),
            sealing=SealingKeys(Secret(b"s" * 32)),
        )
        self.away: list[str] = []

    async def start(self) -> "World":
        await self.guard.start()
        await self.guard.make_first_admin(PASSWORD)
        return self

    def admit(self, name: str, subject: Subject) -> None:
        self.guard.admit(name, subject, lambda: self.away.append(name))


def test_who_is_deleted_is_sent_away_and_nobody_else() -> None:
    async def main() -> None:
        world = await World().start()
        guard = world.guard
        await guard.users.create("alice", PASSWORD)
        for name in (FIRST_ADMIN, "alice"):
            world.admit(name, await guard.authenticator.authenticate(Plain(name, PASSWORD), PEER))
        world.admit("left", await guard.authenticator.authenticate(Plain("alice", PASSWORD), PEER))
        guard.dismiss("left")
        await guard.users.delete("alice")
        assert world.away == ["alice"]
        await guard.stop()
        assert world.failures == []

    run_virtual(main, 1)


def test_a_key_whose_time_is_up_opens_nothing_more_and_its_last_use_is_kept() -> None:
    async def main() -> None:
        world = await World().start()
        guard = world.guard
        key = await guard.keys.create(FIRST_ADMIN, until_ms=world.clock.now_ms() + 5_000)
        world.admit("script", await guard.authenticator.authenticate(Key(key.text), PEER))
        await asyncio.sleep(3)
        assert world.away == []
        assert any(entry.key.endswith(key.id) for entry in await world.store.list("sec/used/"))
        await asyncio.sleep(4)
        assert "script" in world.away
        await guard.stop()

    run_virtual(main, 1)


def test_the_first_admin_is_made_once() -> None:
    async def main() -> None:
        world = await World().start()
        assert await world.guard.make_first_admin(None) is None
        assert set(world.guard.loader.directory.users) == {FIRST_ADMIN}  # type: ignore[union-attr]
        await world.guard.stop()

    run_virtual(main, 1)
