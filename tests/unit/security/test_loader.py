"""The rules of a broker are those of the store: soon, whole, never older than they were; and some while it is away."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security.security_world import Node
from tests.unit.security.test_ruleset import ALICE, ORDERS, rule, rules

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.access import Access, Kind, Operation, Resource, Subject
from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import MetadataUnavailable, Snapshot
from penstock.security import paths
from penstock.security.changes import Changes
from penstock.security.directory import Directory, encode_revision, encode_rule
from penstock.security.loader import Loader
from penstock.security.methods import SuperUsers
from penstock.security.modes import Mode
from penstock.security.rule_changes import RuleChanges
from penstock.security.rules import Effect, Filter, Match, Pattern, Rule
from penstock.security.secret import Secret
from penstock.server.system_clock import SystemClock
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import run_virtual

ALLOWED = rule("allow User:alice * read topic literal orders")
DENIED = rule("deny User:alice * read topic prefixed ord")


def run(test: Callable[[], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    run_virtual(test, seed)


def may(node: Node) -> bool:
    return node.access.decide(ALICE, Operation.READ, ORDERS)


@asynccontextmanager
async def running(*nodes: Node):
    tasks = [asyncio.ensure_future(node.loader.run()) for node in nodes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def count_looks(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each snapshot that a node takes from now on."""
    looks, snapshot = [], node.store.snapshot

    async def counted(prefix: str) -> Snapshot:
        looks.append(prefix)
        return await snapshot(prefix)

    monkeypatch.setattr(node.store, "snapshot", counted)
    return looks


async def until(met: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not met():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)


def test_before_there_are_rules_nobody_may_do_anything() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        etcd.down = True
        node = Node(etcd)
        assert not may(node) and node.loader.directory is None
        with pytest.raises(PenstockError) as caught:
            await node.rules.create([ALLOWED])
        assert caught.value.code is Code.NOT_AVAILABLE
        starting = asyncio.ensure_future(node.loader.start())
        await asyncio.sleep(20)
        assert not starting.done() and not may(node)
        etcd.down = False
        await asyncio.wait_for(starting, 10)
        assert not may(node) and node.loader.directory == Directory()
        assert may(Node(etcd, mode=Mode.OPEN)) and may(Node(etcd, mode=Mode.WATCH))

    run(test)


def test_a_change_is_in_force_here_at_once_and_elsewhere_soon() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        one, two = await Node(etcd, "1").begin(), await Node(etcd, "2").begin()
        async with running(one, two):
            await one.rules.create([ALLOWED])
            assert may(one)
            await until(lambda: may(two), 1)
            await two.rules.create([DENIED])
            assert not may(two)
            await until(lambda: not may(one), 1)
            assert await one.rules.delete([Filter(effect=Effect.DENY)]) == [[DENIED]]
            assert may(one)
            await until(lambda: may(two), 1)
            assert one.loader.directory == two.loader.directory
            assert one.loader.directory is not None and one.loader.directory.revision == 3

    run(test)


def test_a_watch_that_tells_nothing_is_made_up_for() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        one, two = await Node(etcd, "1").begin(), await Node(etcd, "2").begin()
        two.link.watch_lag_s = 1000.0
        async with running(one, two):
            await one.rules.create([ALLOWED])
            await asyncio.sleep(2)
            assert not may(two)
            await until(lambda: may(two), 15)

    run(test)


def test_a_watch_that_is_dead_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        one, two = await Node(etcd, "1").begin(), await Node(etcd, "2").begin()
        watch, begun = two.store.watch, []

        async def dead(prefix: str, after_revision: int):
            begun.append(after_revision)
            if len(begun) == 1:
                await asyncio.get_running_loop().create_future()
            async for changes in watch(prefix, after_revision):
                yield changes

        monkeypatch.setattr(two.store, "watch", dead)
        async with running(one, two):
            await one.rules.create([ALLOWED])
            await until(lambda: may(two), 15)
            await asyncio.sleep(1)
            await one.rules.create([DENIED])
            await until(lambda: not may(two), 1)
            assert len(begun) == 2

    run(test)


def test_those_who_ask_at_the_same_time_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        node = await Node(SimulatedEtcd()).begin()
        looks = count_looks(node, monkeypatch)
        await asyncio.gather(*(node.loader.refresh() for _ in range(50)))
        assert 1 <= len(looks) <= 2
        node.etcd.down = True
        done = await asyncio.gather(*(node.loader.refresh() for _ in range(50)), return_exceptions=True)
        assert all(isinstance(each, MetadataUnavailable) for each in done)
        assert len(looks) <= 4

    run(test)


def test_watches_that_break_off_and_repeat_themselves() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        one, two = await Node(etcd, "1").begin(), await Node(etcd, "2").begin()
        two.link.watch_losses, two.link.watch_repeats = 0.5, 0.5
        async with running(one, two):
            for number in range(20):
                await one.rules.create([ALLOWED])
                await until(lambda: may(two), 12)
                await one.rules.delete([Filter()])
                await until(lambda: not may(two), 12)
                if number == 10:
                    etcd.compact()

    run(test)


def test_other_news_of_the_store_wear_no_watch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(history_revisions=10)
        one, two = await Node(etcd, "1").begin(), await Node(etcd, "2").begin()
        async with running(one, two):
            for number in range(100):
                await one.store.transact(put={"topics/x": b"%d" % number})
                await asyncio.sleep(0.5)
            etcd.compact()
            two.link.shake()
            await asyncio.sleep(5)
            looks = count_looks(two, monkeypatch)
            await asyncio.sleep(100)
            assert 8 <= len(looks) <= 12  # one each 10 s, and no watch that is begun again and again
            await one.rules.create([ALLOWED])
            await until(lambda: may(two), 1)

    run(test)


def test_while_the_store_is_away_the_last_rules_stay() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        node = await Node(etcd).begin()
        async with running(node):
            await node.rules.create([ALLOWED])
            etcd.down = True
            await asyncio.sleep(600)
            assert may(node) and node.loader.problem and node.loader.age_s() >= 590
            with pytest.raises(PenstockError) as caught:
                await node.rules.create([DENIED])
            assert caught.value.code is Code.NOT_AVAILABLE
            etcd.down = False
            await until(lambda: not node.loader.problem, 30)
            assert node.loader.age_s() < 30

    run(test)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (paths.rule_path(DENIED.id), encode_rule(DENIED).replace(b'"version":1', b'"version":2')),
        (paths.rule_path(DENIED.id), encode_rule(DENIED).replace(b'"deny"', b'"maybe"')),
        (paths.rule_path(DENIED.id), encode_rule(DENIED).replace(b'"prefixed"', b'"literal"')),
        (paths.rule_path(DENIED.id), encode_rule(DENIED)[:-1]),
        (paths.rule_path(DENIED.id), b"[]"),
        (paths.rule_path("0" * 32), encode_rule(DENIED)),
        (
            paths.user_path("bob"),
            b'{"version":1,"name":"eve","roles":[],"enabled":true,"certificate":false,"made_ms":0}',
        ),
        (paths.user_path("bob"), b'{"version":1,"name":"bob","roles":[],"enabled":1,"certificate":false,"made_ms":0}'),
        (paths.key_path("0"), b'{"version":1,"id":"0"}'),
        (paths.scram_path("bob"), b'{"version":1,"name":"bob","keys":{"SCRAM-MD5":{}}}'),
        (paths.role_path("r"), b'{"version":1,"name":"r","rules":[{}]}'),
    ],
)
def test_a_value_that_cannot_be_read_keeps_all_of_it_from_being_taken(path: str, value: bytes) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        node = await Node(etcd).begin()
        async with running(node):
            await node.rules.create([ALLOWED])
            broken = {path: value, paths.REVISION: encode_revision(9)}
            await node.store.transact(put=broken, delete=[paths.rule_path(ALLOWED.id)])
            await until(lambda: path in node.loader.problem, 12)
            assert may(node)  # as it was last known
            with pytest.raises(StartupError, match="cannot be read"):
                await Node(etcd, "2").loader.start()
            with pytest.raises(PenstockError):  # decided on what is not the newest
                await node.rules.create([rule("allow User:eve * all topic literal *")])
            await node.store.transact(put={paths.REVISION: encode_revision(10)}, delete=[path])
            await until(lambda: not may(node), 12)
            assert not node.loader.problem

    run(test)


def test_what_a_later_release_keeps_beside_is_left_alone() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        node = await Node(etcd).begin()
        await node.store.transact(put={"sec/tokens/x": b"?", paths.used_path("k"): b"?"})
        await node.rules.create([ALLOWED])
        assert may(node)

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_who_change_at_the_same_time_both_are_heard(seed: int) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(seed, max_delay_s=0.05)
        nodes = [await Node(etcd, str(number)).begin() for number in range(3)]
        made = [[rule(f"allow User:u{who} * read topic literal t{each}") for each in range(5)] for who in range(3)]
        async with running(*nodes):
            for each in zip(*made, strict=True):
                await asyncio.gather(*(node.rules.create([one]) for node, one in zip(nodes, each, strict=True)))
            revisions = [node.loader.rules.revision for node in nodes]
            await until(lambda: len({node.loader.directory.revision for node in nodes}) == 1, 12)
        for node in nodes:
            assert set(node.rules.find(Filter())) == {one for each in made for one in each}
            assert node.loader.directory.revision == 15
        assert all(revisions)

    run(test, seed)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_first_admins_one_is(seed: int) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(seed, max_delay_s=0.05)
        nodes = [await Node(etcd, str(number)).begin() for number in range(2)]
        done = await asyncio.gather(
            *(node.users.bootstrap(f"admin{at}") for at, node in enumerate(nodes)), return_exceptions=True
        )
        refused = [each for each in done if isinstance(each, PenstockError)]
        assert [each.code for each in refused] == [Code.NOT_ALLOWED]
        assert sum(isinstance(each, Secret) for each in done) == 1
        for node in nodes:
            await node.loader.refresh()
            assert len(node.loader.directory.users) == 1

    run(test, seed)


def test_a_slow_load_never_puts_older_rules_in_place_of_newer_ones() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        builds: list[asyncio.Future] = []

        async def slow(function: Callable, *arguments: Any) -> Any:
            found = function(*arguments)
            builds.append(asyncio.get_running_loop().create_future())
            await builds[-1]
            return found

        writer = await Node(etcd, "writer").begin()
        node = Node(etcd, in_thread=slow)
        loads = [asyncio.ensure_future(node.loader.refresh())]
        await until(lambda: len(builds) == 1, 1)
        await writer.rules.create([ALLOWED])
        loads += [asyncio.ensure_future(node.loader.refresh()) for _ in range(3)]
        await asyncio.sleep(1)
        assert len(builds) == 1 and not any(load.done() for load in loads)
        builds[0].set_result(None)
        await until(lambda: len(builds) == 2, 1)
        assert loads[0].done() and not any(load.done() for load in loads[1:]) and not may(node)
        builds[1].set_result(None)
        await asyncio.gather(*loads)
        assert may(node) and len(builds) == 2

    run(test)


@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_is_cut_short_is_not_taken_for_one(seed: int) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(seed)
        held: list[tuple[asyncio.Task, asyncio.Future]] = []

        async def slow(function: Callable, *arguments: Any) -> Any:
            mine = asyncio.get_running_loop().create_future()
            held.append((asyncio.current_task(), mine))
            await mine
            return function(*arguments)

        writer = await Node(etcd, "writer").begin()
        node = Node(etcd, in_thread=slow)
        loads = [asyncio.ensure_future(node.loader.refresh())]
        await until(lambda: len(held) == 1, 1)
        await writer.rules.create([ALLOWED])
        loads += [asyncio.ensure_future(node.loader.refresh()) for _ in range(2)]  # they share the next load
        await asyncio.sleep(0.1)
        held[0][1].set_result(None)
        await until(lambda: len(held) == 2, 1)
        held[1][0].cancel()  # the one of them that does it
        await until(lambda: len(held) == 3, 1)
        held[2][1].set_result(None)
        await asyncio.wait(loads)
        assert may(node) and sum(load.cancelled() for load in loads) == 1

    run(test, seed)


def test_an_old_copy_of_the_store_is_taken_as_it_is() -> None:
    async def test() -> None:
        etcd = SimulatedEtcd()
        node = await Node(etcd).begin()
        async with running(node):
            await node.rules.create([ALLOWED])
            copy = etcd.copy()
            await node.rules.create([DENIED])
            revision = node.access.policy.revision
            assert not may(node)
            etcd.restore(copy)
            await until(lambda: may(node), 15)
            assert node.access.policy.revision > revision

    run(test)


def test_the_mode_can_be_another_one_at_once() -> None:
    async def test() -> None:
        node = await Node(SimulatedEtcd(), mode=Mode.WATCH, supers=SuperUsers(["User:root"])).begin()
        assert may(node) and node.loader.refusals.total == 1
        node.loader.mode = Mode.CLOSED
        assert not may(node) and node.loader.refusals.total == 1
        assert node.access.decide(Subject("User:root", method="scram"), Operation.ALTER, ORDERS)
        node.loader.mode = Mode.OPEN
        assert may(node) and node.access.policy.is_open
        assert not node.loader.rules.decide(ALICE, Operation.READ, ORDERS)

    run(test)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(rules, min_size=1, max_size=4)), max_size=8))
def test_rules_changed_one_by_one_are_those_made_at_once(steps: list[tuple[bool, list[Rule]]]) -> None:
    async def test() -> None:
        node = await Node(SimulatedEtcd(max_delay_s=0.0)).begin()
        kept: dict[Rule, None] = {}
        for adds, several in steps:
            if adds:
                await node.rules.create(several)
                kept |= dict.fromkeys(several)
            else:
                one = several[0]
                wanted = Filter(kind=one.kind, pattern=Match.MATCH, name=one.name)
                (found,) = await node.rules.delete([wanted])
                gone = {each for each in kept if each.kind is one.kind and each.covers(each.kind, one.name)}
                assert set(found) == gone
                kept = {each: None for each in kept if each not in gone}
        assert set(node.rules.find(Filter())) == set(kept)
        again = Node(node.etcd, "again")
        await again.loader.start()
        for who in ("User:alice", "User:bob"):
            for name in ("a", "abc", "*", "b"):
                for kind in (Kind.TOPIC, Kind.GROUP):
                    subject, resource = Subject(who, "10.0.0.1"), Resource(kind, name)
                    rights = node.loader.rules.rights(subject, resource)
                    assert rights == again.loader.rules.rights(subject, resource)

    run(test)


def test_many_rules_go_in_several_changes_and_denials_first() -> None:
    async def test() -> None:
        node = await Node(SimulatedEtcd(max_delay_s=0.0)).begin()
        seen: list[tuple[int, int]] = []

        def look(directory: Directory) -> None:
            effects = [each.effect for each in directory.rules.values()]
            seen.append((effects.count(Effect.DENY), effects.count(Effect.ALLOW)))

        node.loader.listeners.append(look)
        template = ALLOWED._replace(pattern=Pattern.PREFIXED)
        many = [template._replace(name=f"t{number}") for number in range(150)]
        many += [each._replace(effect=Effect.DENY) for each in many]
        await node.rules.create(many)
        assert seen == [(98, 0), (150, 46), (150, 144), (150, 150)]
        seen.clear()
        (found,) = await node.rules.delete([Filter(pattern=Pattern.PREFIXED)])
        assert set(found) == set(many)
        assert seen == [(150, 52), (104, 0), (6, 0), (0, 0)]
        seen.clear()
        await node.rules.delete([Filter()])
        assert seen == []

    run(test)


async def test_on_a_broker_of_its_own(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
    access = Access()
    loader = Loader(store, access, SystemClock(), Mode.CLOSED)
    await loader.start()
    running = asyncio.ensure_future(loader.run())
    try:
        changes = RuleChanges(Changes(loader), loader)
        await changes.create([ALLOWED])
        assert access.decide(ALICE, Operation.READ, ORDERS)
        heard = asyncio.Event()
        loader.listeners.append(lambda _: heard.set())
        assert loader.directory is not None
        await store.transact(
            put={paths.REVISION: encode_revision(2)}, delete=[paths.rule_path(ALLOWED.id), paths.used_path("none")]
        )
        await asyncio.wait_for(heard.wait(), 30)
        assert not access.decide(ALICE, Operation.READ, ORDERS)
        await changes.create([ALLOWED])
    finally:
        running.cancel()
        await asyncio.wait([running])
        await store.close()
    store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
    again = Loader(store, access, SystemClock(), Mode.CLOSED)
    assert not access.decide(ALICE, Operation.READ, ORDERS)
    await again.start()
    assert access.decide(ALICE, Operation.READ, ORDERS)
    await store.close()


def test_what_is_kept_is_what_was_first_kept() -> None:
    """The format of version 1, which every later release reads."""
    kept = encode_rule(DENIED)
    assert orjson.loads(kept) == {
        "version": 1,
        "principal": "User:alice",
        "host": "*",
        "operation": "read",
        "kind": "topic",
        "pattern": "prefixed",
        "name": "ord",
        "effect": "deny",
    }
    assert DENIED.id == "27615be27fca802812bc00edd1ad7f15"
