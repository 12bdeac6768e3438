"""A broker's guard: who is inside is sent away when the user, the key or the key's time is gone."""

import asyncio
from random import Random
from typing import Any

import pytest
from tests.unit.security.security_world import at_once

from penstock.engine.access import THE_CLUSTER, Access, Kind, Operation, Resource, Subject
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Entry, MetadataUnavailable
from penstock.security.authentication import Key, Peer
from penstock.security.guard import FIRST_ADMIN, Guard
from penstock.security.methods import Method
from penstock.security.modes import Mode
from penstock.security.plain import Plain
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

PEER = Peer("10.0.0.1", "kafka")
PASSWORD = Secret(b"correct horse")


class World:
    """One broker's guard, and what became of those inside."""

    def __init__(self, mode: Mode = Mode.CLOSED, store: MemoryStore | None = None) -> None:
        self.clock = VirtualClock()
        self.failures: list[BaseException] = []
        self.store = store or MemoryStore()
        self.guard = Guard(
            self.store,
            Access(),
            self.clock,
            Random(1),
            at_once,
            self.failures.append,
            mode=mode,
            supers=("User:root",),
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


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b"{}", b'{"hour": null}', b'{"hour": "7"}', b'{"hour": -5}', b'{"hour": 1e300}', b"\xff"]
)
def test_a_note_of_a_last_use_that_cannot_be_read_is_replaced_and_stops_nothing(said: bytes) -> None:
    async def main() -> None:
        world = await World().start()
        guard = world.guard
        key = await guard.keys.create(FIRST_ADMIN)
        await world.store.transact(put={f"sec/used/{key.id}": said})
        assert await guard.keys.last_used_ms() == {}
        await guard.authenticator.authenticate(Key(key.text), PEER)
        await asyncio.sleep(3)
        hour_ms = world.clock.now_ms() // 3_600_000 * 3_600_000
        assert await guard.keys.last_used_ms() == {key.id: hour_ms}
        await guard.stop()
        assert world.failures == []

    run_virtual(main, 1)


class Broken(MemoryStore):
    async def get(self, key: str) -> Entry | None:
        if key.startswith("sec/keys/"):
            raise RuntimeError("a bug")
        return await super().get(key)


def test_a_bug_in_noting_a_last_use_stops_no_broker() -> None:
    async def main() -> None:
        world = await World(store=Broken()).start()
        key = await world.guard.keys.create(FIRST_ADMIN)
        await world.guard.authenticator.authenticate(Key(key.text), PEER)
        await asyncio.sleep(3)
        await world.guard.stop()
        assert world.failures == []

    run_virtual(main, 1)


def test_the_first_admin_is_made_once() -> None:
    async def main() -> None:
        world = await World().start()
        assert await world.guard.make_first_admin(None) is None
        assert set(world.guard.loader.directory.users) == {FIRST_ADMIN}  # type: ignore[union-attr]
        await world.guard.stop()

    run_virtual(main, 1)


class Silent(MemoryStore):
    """Makes a change, or does not, and does not answer."""

    def __init__(self, *, makes: bool) -> None:
        super().__init__()
        self.left = 2
        self._makes = makes

    async def transact(self, **asked: Any) -> int:
        if any(key.startswith("sec/users/") for key in asked["put"]) and self.left:
            self.left -= 1
            if self._makes:
                await super().transact(**asked)
            raise MetadataUnavailable
        return await super().transact(**asked)


@pytest.mark.parametrize("makes", [True, False])
def test_the_first_admins_password_is_told_even_if_the_store_did_not_answer(makes: bool) -> None:
    """Else there would be an administrator, so that nobody makes another one, whose password nobody has."""

    async def main() -> None:
        world = World(store=Silent(makes=makes))
        await world.guard.start()
        password = await world.guard.make_first_admin(None)
        assert password is not None
        assert await world.guard.authenticator.authenticate(Plain(FIRST_ADMIN, password), PEER)
        await world.guard.stop()

    run_virtual(main, 1)


def test_who_was_not_quick_enough_to_make_the_first_admin_has_no_password_to_tell() -> None:
    async def main() -> None:
        store = MemoryStore()
        worlds = [World(store=store), World(store=store)]
        for world in worlds:
            await world.guard.start()
        told = [await world.guard.make_first_admin(None) for world in worlds]
        assert told[0] is not None and told[1] is None
        for world in worlds:
            await world.guard.stop()

    run_virtual(main, 1)


ANYBODY = Subject(host="192.0.2.7", door="kafka")
HERE = ANYBODY._replace(host="127.0.0.1")
ALICE = Subject("User:alice", "127.0.0.1", "kafka", Method.SCRAM)


@pytest.mark.parametrize("mode", list(Mode))
def test_who_may_change_users_and_rules_is_what_the_rules_say_in_every_mode(mode: Mode) -> None:
    """Else a stranger makes itself an administrator while a cluster is not closed yet, and is one afterwards."""

    async def main() -> None:
        world = await World(mode).start()
        guard = world.guard

        def code(subject: Subject) -> Code | None:
            try:
                guard.check_change(subject)
            except PenstockError as error:
                return error.code
            return None

        admin, root = ALICE._replace(principal=f"User:{FIRST_ADMIN}"), ALICE._replace(principal="User:root")
        assert code(admin) is code(root) is None
        assert code(root._replace(method=Method.CERTIFICATE)) is Code.NOT_AUTHORISED
        assert code(ALICE) is code(ANYBODY) is Code.NOT_AUTHORISED
        key = await guard.keys.create(FIRST_ADMIN)
        assert code(admin._replace(method=Method.API_KEY, key=key.id)) is Code.NOT_ALLOWED
        for local in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
            assert (code(HERE._replace(host=local)) is None) is (mode is Mode.OPEN)
        for remote in ("", "localhost", "127.0.0.1.example.net", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "*"):
            assert code(HERE._replace(host=remote)) is Code.NOT_AUTHORISED
        rule = Rule("User:alice", "*", Operation.ALTER, Kind.CLUSTER, Pattern.LITERAL, THE_CLUSTER.name, Effect.ALLOW)
        await guard.rules.create([rule])
        assert code(ALICE) is None
        with pytest.raises(PenstockError):
            guard.check_change(ALICE, Operation.ALTER, Resource(Kind.USER, "bob"))
        assert guard.loader.refusals.total == 0, "what is refused was not let pass"
        await guard.stop()

    run_virtual(main, 1)
