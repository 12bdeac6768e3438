"""What a leader counts and a follower goes by: in-sync sets, the high watermark, who is woken or refused."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.simulated_broker import batch_of, virtual
from tests.simulated_log import open_log

from penstock.engine.leadership import UNKNOWN, Leadership
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState, alone
from penstock.engine.safety import until_settled
from penstock.engine.topic_config import make_config
from penstock.errors import Code, PenstockError
from penstock.storage.log.copied import append_copied
from penstock.testing.faulty_disk import FaultyDisk

from .led_partition import ME, THREE, TOPIC, led


def refused(code: Code, attempt: Callable[..., object]) -> PenstockError:
    with pytest.raises(PenstockError) as told:
        attempt()
    assert told.value.code is code
    return told.value


# --- what the cluster decides


@pytest.mark.parametrize(
    ("state", "members", "min_isr", "isr", "elr", "last"),
    [
        (((1, 2, 3), (), ()), [1, 2], 2, (1, 2), (), ()),
        (((1, 2, 3), (), ()), [2, 1], 1, (1, 2), (), ()),
        (((1, 2, 3), (), ()), [1], 2, (1,), (2, 3), ()),
        (((1, 2, 3), (), ()), [], 2, (), (1, 2, 3), ()),
        (((1,), (2,), ()), [1], 2, (1,), (2,), ()),
        (((1,), (2,), ()), [1, 3], 2, (1, 3), (), ()),
        (((1,), (2,), ()), [1, 2], 2, (1, 2), (), ()),
        (((1,), (3,), ()), [1, 2], 3, (1, 2), (3,), ()),
        (((1, 3), (), ()), [3], 2, (3,), (1,), ()),
        (((), (), (1, 2)), [2], 2, (2,), (), (1,)),
        (((), (), (1, 2)), [2, 3], 2, (2, 3), (), ()),
        (((1,), (), (2,)), [1], 1, (1,), (), ()),
        (((1, 2, 3), (), ()), [1, 7], 1, (1,), (), ()),
    ],
)
def test_who_leaves_when_too_few_stay_may_lead(
    state: tuple[tuple[int, ...], ...],
    members: list[int],
    min_isr: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last: tuple[int, ...],
) -> None:
    before = PartitionState((1, 2, 3), state[0], 1, 4, state[1], state[2], 9)
    after = before.with_isr(members, min_isr)
    assert after == replace(before, isr=isr, elr=elr, last=last)


@pytest.mark.parametrize(
    ("state", "members", "isr", "elr", "last"),
    [
        (((1, 2, 3), (), ()), {2}, (1, 3), (), ()),
        (((1,), (2, 3), ()), {2}, (1,), (3,), ()),
        (((1,), (2,), ()), {1}, (), (2,), ()),
        (((1,), (2,), ()), {1, 2}, (), (), (1, 2)),
        (((3,), (), (1,)), {3}, (), (), (1, 3)),
        (((), (), (2,)), {1}, (), (), (2,)),
        (((1, 2), (), ()), set(), (1, 2), (), ()),
    ],
)
def test_those_nobody_can_trust_are_remembered_when_nobody_else_is_left(
    state: tuple[tuple[int, ...], ...],
    members: set[int],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last: tuple[int, ...],
) -> None:
    before = PartitionState((1, 2, 3), state[0], 1, 4, state[1], state[2], 9)
    assert before.without(members) == replace(before, isr=isr, elr=elr, last=last)


def test_every_election_is_an_epoch_of_its_own() -> None:
    state = PartitionState((1, 2), (1,), 1, 4, (2,), (), 9)
    assert state.led_by(2) == replace(state, leader=2, leader_epoch=5)
    assert state.led_by(NOBODY).led_by(1).leader_epoch == 6


@pytest.mark.parametrize(
    "state",
    [
        alone(3, 7),
        PartitionState((3, 1, 2), (1, 2), NOBODY, 0),
        PartitionState((3, 1, 2), (1,), 1, 1 << 30, (3,), (2,)),
    ],
)
def test_a_state_is_read_as_it_was_written(state: PartitionState) -> None:
    assert PartitionState.decode(state.encode(), 12) == replace(state, revision=12)


# --- what a leader counts


def leadership(isr: tuple[int, ...] = (1, 2, 3), epoch_start: int = 0, **more: Any) -> Leadership:
    made = Leadership(ME, epoch_start)
    use(made, isr, **more)
    return made


def use(
    made: Leadership,
    isr: tuple[int, ...],
    *,
    joining: tuple[int, ...] = (),
    waiting: tuple[int, ...] = (),
    least: int = 2,
    now: float = 0.0,
) -> None:
    made.use((1, 2, 3), isr, joining, waiting, least, now)


@pytest.mark.parametrize(
    ("isr", "joining", "ends", "committed"),
    [
        ((1, 2, 3), (), {2: 10, 3: 10}, 10),
        ((1, 2, 3), (), {2: 4, 3: 9}, 4),
        ((1, 2, 3), (), {2: 12, 3: 10}, 10),
        ((1, 2, 3), (), {2: 10}, UNKNOWN),
        ((1, 2, 3), (), {}, UNKNOWN),
        ((1, 2), (), {2: 9, 3: 2}, 9),
        ((1, 2), (), {2: 9}, 9),
        ((1, 2), (3,), {2: 9, 3: 2}, 2),
        ((1, 2), (3,), {2: 9}, UNKNOWN),
        ((1,), (), {2: 1, 3: 2}, 10),
        ((1,), (2,), {2: 7}, 7),
    ],
)
def test_everything_is_committed_that_all_in_sync_have(
    isr: tuple[int, ...], joining: tuple[int, ...], ends: dict[int, int], committed: int
) -> None:
    made = leadership(isr, joining=joining)
    for broker_id, end in ends.items():
        assert made.fetched(broker_id, end, 1, 10, 0.0)
    assert made.committed(10) == committed


@pytest.mark.parametrize(
    ("isr", "joining", "waiting", "least", "enough", "is_alone"),
    [
        ((1, 2, 3), (), (), 2, True, False),
        ((1, 2), (), (), 2, True, False),
        ((1,), (), (), 2, False, True),
        ((1,), (), (), 1, True, True),
        ((1,), (2,), (), 2, False, False),
        ((1, 2), (), (3,), 2, False, False),
        ((1,), (), (3,), 1, False, True),
    ],
)
def test_too_few_in_sync_acknowledge_nothing(
    isr: tuple[int, ...],
    joining: tuple[int, ...],
    waiting: tuple[int, ...],
    least: int,
    enough: bool,
    is_alone: bool,
) -> None:
    made = leadership(isr, joining=joining, waiting=waiting, least=least)
    assert (made.enough, made.is_alone) == (enough, is_alone)


def test_with_one_replica_nobody_is_alone_of_several() -> None:
    made = Leadership(ME, 0)
    made.use((1,), (1,), (), (), 1, 0.0)
    assert not made.is_alone and made.enough
    assert made.committed(7) == 7
    assert not made.fetched(2, 7, 1, 7, 0.0)


def test_a_process_that_has_ended_does_not_count() -> None:
    made = leadership()
    assert made.fetched(2, 5, 4, 10, 0.0)
    assert not made.fetched(2, 9, 3, 10, 0.0)
    follower = made.follower(2)
    assert follower is not None and (follower.end, follower.incarnation) == (5, 4)
    assert made.fetched(2, 3, 5, 10, 0.0), "a new one may have less"
    assert follower.end == 3
    assert not made.fetched(9, 9, 9, 10, 0.0)


@pytest.mark.parametrize(
    ("end", "high_watermark", "epoch_start", "joins"),
    [(10, 10, 0, True), (9, 10, 0, False), (9, 4, 10, False), (10, 4, 10, True), (UNKNOWN, 0, 0, False)],
)
def test_who_has_all_that_is_committed_and_the_beginning_of_the_epoch_may_join(
    end: int, high_watermark: int, epoch_start: int, joins: bool
) -> None:
    made = leadership((1, 2), epoch_start)
    if end != UNKNOWN:
        made.fetched(3, end, 1, 12, 0.0)
    made.fetched(2, 12, 1, 12, 0.0)
    found = [follower.broker_id for follower in made.joinable((1, 2), high_watermark)]
    assert found == ([3] if joins else [])


def test_who_does_not_catch_up_for_long_lags() -> None:
    made = leadership(now=0.0)
    assert made.lagging((1, 2, 3), 0, 10.0, 10.0) == []
    assert made.lagging((1, 2, 3), 0, 10.0, 10.1) == [2, 3]
    made.fetched(2, 50, 1, 50, 8.0)
    assert made.lagging((1, 2, 3), 0, 10.0, 18.0) == [3]
    # It never reaches an end that moves on, but has what there was when it asked before.
    made.fetched(3, 40, 1, 50, 9.0)
    made.fetched(3, 50, 1, 60, 11.0)
    assert made.lagging((1, 2, 3), 0, 10.0, 18.5) == [2]
    assert made.lagging((1, 2, 3), 0, 10.0, 19.5) == [2, 3]
    made.fetched(3, 55, 1, 70, 19.0)
    assert made.lagging((1, 2, 3), 0, 10.0, 19.5) == [2, 3], "it had not everything when it asked before"
    assert made.lagging((1,), 0, 10.0, 99.0) == []


def test_who_lacks_what_is_committed_lags_at_once() -> None:
    made = leadership()
    assert made.lacking((1, 2, 3), 10) == [], "not heard of is not lacking"
    made.fetched(2, 9, 1, 12, 0.0)
    made.fetched(3, 10, 1, 12, 0.0)
    assert made.lacking((1, 2, 3), 10) == [2]
    assert made.lagging((1, 2, 3), 10, 10.0, 0.0) == [2]
    assert made.lacking((1, 3), 10) == []


def test_what_is_known_of_a_follower_outlives_other_sets_but_not_its_replica() -> None:
    made = leadership()
    made.fetched(2, 7, 1, 10, 3.0)
    use(made, (1, 3))
    use(made, (1, 2, 3))
    made.fetched(3, 8, 1, 10, 3.0)
    assert made.committed(10) == 7
    made.use((1, 3), (1, 3), (), (), 2, 0.0)
    assert made.follower(2) is None
    assert made.committed(10) == 8


# --- a partition that is led


@virtual
async def test_alone_everything_synced_is_committed() -> None:
    made = await led(alone(ME, 0))
    made.append(2)
    assert made.high_watermark == 0, "nothing is durable yet"
    await made.bench.commit()
    assert made.high_watermark == 2
    made.partition.may_decide_alone = lambda: False
    assert await made.write() == made.high_watermark, "nobody else could have been elected"
    refused(Code.NOT_ALLOWED, lambda: made.fetched(2, 0))


@virtual
async def test_the_high_watermark_is_where_the_slowest_in_sync_is() -> None:
    made = await led()
    end = await made.write(6)
    assert made.high_watermark == 0, "nobody was heard of"
    made.fetched(2, 4)
    assert made.high_watermark == 0, "one has not been heard of"
    made.fetched(3, 2)
    assert made.high_watermark == 2
    made.fetched(3, end)
    assert made.high_watermark == 4
    made.fetched(2, end)
    assert made.high_watermark == end
    made.append(2)
    made.fetched(2, end + 2)
    made.fetched(3, end + 2)
    assert made.high_watermark == end, "the leader has not synced it"
    await made.bench.commit()
    assert made.high_watermark == end + 2
    made.fetched(2, 1)
    assert made.high_watermark == end + 2, "it never falls"


@virtual
async def test_ends_told_in_another_epoch_do_not_count() -> None:
    made = await led()
    end = await made.write(3)
    made.fetched(2, end)
    made.fetched(3, end - 1)
    await made.bench.upkeep.begin_epochs([(made.bench.log, 1)])
    made.partition.lead(replace(THREE, leader_epoch=1))
    assert made.high_watermark == end - 1
    made.fetched(3, end)
    assert made.high_watermark == end - 1
    assert not made.partition.is_settled
    made.fetched(2, end)
    assert made.high_watermark == end
    assert made.partition.is_settled


@virtual
async def test_who_joins_counts_before_it_is_known_to_be_in() -> None:
    state = replace(THREE, isr=(1, 2))
    made = await led(state)
    end = await made.write(4)
    made.fetched(3, 1)
    made.partition.let_join([3])
    made.fetched(2, end)
    assert made.high_watermark == 1
    made.fetched(3, 2)
    assert made.high_watermark == 2
    made.partition.use_state(replace(state, revision=2))
    assert made.high_watermark == end, "it is known not to be in"
    made.partition.let_join([3])
    made.partition.use_state(replace(state, isr=(1, 2, 3), revision=3))
    end = await made.write()
    made.fetched(2, end)
    assert made.high_watermark == end - 1
    made.fetched(3, end)
    assert made.high_watermark == end


@virtual
async def test_whoever_may_have_been_let_in_counts_until_the_outcome_is_known() -> None:
    """Two changes with unknown outcome, one after the other: either may have been made."""
    state = replace(THREE, isr=(1,))
    made = await led(state, min_insync_replicas="1")
    end = await made.write(4)
    made.fetched(2, end)
    made.fetched(3, end)
    made.partition.let_join([2])
    made.partition.let_join([3])
    made.append()
    await made.bench.commit()
    made.fetched(3, end + 1)
    assert made.high_watermark == end, "broker 2 may be in sync, and has less"
    made.fetched(2, end + 1)
    assert made.high_watermark == end + 1


@virtual
async def test_with_too_few_in_sync_nothing_is_committed_or_promised() -> None:
    made = await led(min_insync_replicas="2")
    end = await made.write(3)
    for broker_id in (2, 3):
        made.fetched(broker_id, end)
    made.partition.check_in_sync()
    few = replace(THREE, isr=(1,), elr=(2, 3), revision=2)
    made.partition.use_state(few)
    error = refused(Code.NOT_ENOUGH_REPLICAS, made.partition.check_in_sync)
    assert "1 of 3" in str(error) and "2 are needed" in str(error)
    refused(Code.NOT_ENOUGH_REPLICAS, lambda: made.partition.append_own(batch_of([b"own"], made.bench.clock)))
    later = await made.write()
    assert made.high_watermark == end
    for broker_id in (2, 3):
        made.fetched(broker_id, later)
    assert made.high_watermark == end
    made.partition.use_state(replace(THREE, isr=(1, 2), revision=3))
    assert made.high_watermark == later
    made.partition.check_in_sync()


@pytest.mark.parametrize("waiting", [{"elr": (3,)}, {"last": (3,)}])
def test_while_others_may_be_elected_by_what_they_have_nothing_new_is_committed(waiting: dict[str, Any]) -> None:
    async def check() -> None:
        state = replace(THREE, isr=(1, 2), **waiting)
        made = await led(state, min_insync_replicas="1")
        end = await made.write()
        made.fetched(2, end)
        assert made.high_watermark == 0
        refused(Code.NOT_ENOUGH_REPLICAS, made.partition.check_in_sync)
        made.partition.use_state(replace(THREE, isr=(1, 2), revision=2))
        assert made.high_watermark == end

    virtual(check)()


@virtual
async def test_the_only_one_in_sync_of_several_needs_its_lease() -> None:
    made = await led(replace(THREE, isr=(1,)), min_insync_replicas="1")
    made.partition.may_decide_alone = lambda: False
    end = await made.write()
    assert made.high_watermark == 0
    made.partition.let_join([2])
    made.fetched(2, end)
    assert made.high_watermark == end, "the other one would know of a successor"
    made.partition.use_state(replace(THREE, isr=(1,), revision=2))
    end = await made.write()
    assert made.high_watermark == end - 1
    made.partition.may_decide_alone = lambda: True
    end = await made.write()
    assert made.high_watermark == end


@virtual
async def test_other_settings_count_at_once() -> None:
    made = await led(replace(THREE, isr=(1, 2)), min_insync_replicas="3")
    end = await made.write()
    made.fetched(2, end)
    assert made.high_watermark == 0
    made.partition.use_config(make_config({"min.insync.replicas": "2"}, {}))
    assert made.high_watermark == end


# --- who is told


@virtual
async def test_acks_are_answered_in_order_and_readers_woken() -> None:
    made = await led()
    waiters = made.partition.waiters
    waiters.add_reader(made.call("reader"))
    waiters.add_follower(made.call("follower"))
    await made.write(2)
    assert made.calls == ["follower"], "a follower is told before anything is committed"
    made.wait(1, "first")
    end = await made.write(2)
    made.wait(3, "second")
    made.calls.clear()
    for broker_id in (2, 3):
        made.fetched(broker_id, 2)
    assert made.calls == ["first done", "reader"]
    for broker_id in (2, 3):
        made.fetched(broker_id, end)
    assert made.calls == ["first done", "reader", "second done"], "a reader is told once, and asks again"


@virtual
async def test_who_waits_is_told_that_another_one_leads() -> None:
    made = await led()
    partition, waiters = made.partition, made.partition.waiters
    reader, follower = made.call("reader"), made.call("follower")
    await made.write(2)
    made.wait(0, "one")
    made.wait(1, "two")
    waiters.add_reader(reader)
    waiters.add_follower(follower)
    first = partition.guard(77)
    assert partition.guard(77) is first
    partition.follow(replace(THREE, leader=2, leader_epoch=1, revision=2))
    assert made.calls == ["one: not_leader", "one done", "two: not_leader", "two done", "reader", "follower"]
    assert not partition.guards and partition.guard(77) is not first
    error = refused(Code.NOT_LEADER, lambda: made.append())
    assert "broker 2" in str(error) and "epoch 1" in str(error)
    for attempt in (lambda: partition.leadership, partition.leading, lambda: partition.end_of_epoch(0)):
        refused(Code.NOT_LEADER, attempt)
    for attempt in (lambda: made.fetched(2, 2), lambda: partition.check_replica_epoch(1)):
        refused(Code.NOT_LEADER, attempt)
    assert not partition.is_settled
    made.calls.clear()
    made.wait(5, "late")
    partition.follow(replace(THREE, leader=3, leader_epoch=2, revision=3))
    waiters.add_follower(follower)
    append_copied(partition.opened(), memoryview(batch_of([b"c"], made.bench.clock, base_offset=2, leader_epoch=2)))
    await made.bench.commit()
    assert made.calls == [], "nobody waits for a follower"


@virtual
async def test_a_sync_that_ends_when_another_one_leads_commits_nothing() -> None:
    made = await led(replace(THREE, isr=(1,)), min_insync_replicas="1")
    made.append(3)
    made.partition.follow(replace(THREE, leader=2, leader_epoch=1))
    await made.bench.commit()
    assert made.bench.log.visible_end == 3
    assert made.high_watermark == 0
    assert made.bench.log.follows


@virtual
async def test_settling_waits_for_what_was_there_before() -> None:
    made = await led()
    end = await made.write(3)
    await made.bench.upkeep.begin_epochs([(made.bench.log, 1)])
    made.partition.lead(replace(THREE, leader_epoch=1))
    settled = until_settled(made.partition)
    made.fetched(2, end)
    made.fetched(3, end - 1)
    assert not settled.done()
    made.fetched(3, end)
    assert settled.done()
    assert until_settled(made.partition).done()


@virtual
async def test_a_follower_that_could_be_in_sync_is_noticed() -> None:
    made = await led(replace(THREE, isr=(1, 2)))
    made.partition.on_followers_moved = made.call("moved")
    end = await made.write(4)
    made.fetched(2, 3)
    made.fetched(3, 3)
    assert made.calls == ["moved"]
    made.fetched(2, end)
    assert made.high_watermark == end
    made.fetched(3, end - 1)
    assert made.calls == ["moved"], "it lacks what is committed"
    made.fetched(3, end)
    assert made.calls == ["moved", "moved"]
    made.partition.let_join([3])
    made.fetched(3, end)
    assert made.calls == ["moved", "moved"]


@virtual
async def test_a_follower_reads_what_is_not_committed() -> None:
    made = await led()
    await made.write(2)
    assert made.partition.read(0, 1 << 20, committed=False, at_least_one=True) is None
    found = made.partition.replica_read(0, 1 << 20, at_least_one=True)
    assert found is not None and found.size == made.bench.log.active.size


# --- who is refused


@virtual
async def test_only_replicas_and_their_last_process_may_fetch() -> None:
    made = await led()
    await made.write(3)
    made.fetched(2, 1, incarnation=4)
    made.fetched(3, 3)
    assert made.high_watermark == 1
    refused(Code.NOT_ALLOWED, lambda: made.fetched(2, 3, incarnation=3))
    assert made.high_watermark == 1
    refused(Code.OFFSET_OUT_OF_RANGE, lambda: made.fetched(2, 4, incarnation=4))
    assert made.high_watermark == 1, "what is not there does not count"
    assert "broker 7" in str(refused(Code.NOT_ALLOWED, lambda: made.fetched(7, 3)))
    made.fetched(2, 3, incarnation=4)
    assert made.high_watermark == 3


@pytest.mark.parametrize(
    ("current", "of_client", "of_follower"),
    [
        (3, None, None),
        (2, Code.FENCED_LEADER_EPOCH, Code.FENCED_LEADER_EPOCH),
        (4, Code.UNKNOWN_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH),
        (-1, None, Code.FENCED_LEADER_EPOCH),
    ],
)
def test_epochs_that_are_not_this_one_are_refused(
    current: int, of_client: Code | None, of_follower: Code | None
) -> None:
    async def check() -> None:
        made = await led(replace(THREE, leader_epoch=3))
        for code, attempt in (
            (of_client, made.partition.check_epoch),
            (of_follower, made.partition.check_replica_epoch),
        ):
            if code is None:
                attempt(current)
            else:
                refused(code, lambda attempt=attempt: attempt(current))

    virtual(check)()


@virtual
async def test_a_follower_must_name_its_epoch_even_if_it_is_the_first() -> None:
    made = await led(replace(THREE, leader_epoch=0))
    refused(Code.FENCED_LEADER_EPOCH, lambda: made.partition.check_replica_epoch(-1))


# --- a partition that is followed


@virtual
async def test_a_follower_believes_what_it_has() -> None:
    made = await led(replace(THREE, isr=(1,)), min_insync_replicas="1")
    await made.write(3)
    made.append(2)
    partition = made.partition
    partition.told_committed(5)
    assert made.high_watermark == 3, "a leader is told nothing"
    partition.follow(replace(THREE, leader=2, leader_epoch=1))
    partition.told_committed(5)
    assert made.high_watermark == 3, "what is not synced may be lost yet"
    await made.bench.commit()
    partition.told_committed(4)
    assert made.high_watermark == 4
    partition.told_committed(2)
    assert made.high_watermark == 4
    partition.told_committed(100)
    assert made.high_watermark == 5
    partition.log = None
    partition.told_committed(100)
    assert partition.high_watermark == 5


@pytest.mark.parametrize(
    ("known", "saved", "log_start", "expected"),
    [(0, 2, 0, 2), (0, 9, 0, 4), (3, 2, 0, 3), (0, 0, 3, 3), (0, 0, 0, 0)],
)
def test_a_log_is_held_with_what_is_known_to_be_committed(
    known: int, saved: int, log_start: int, expected: int
) -> None:
    async def check() -> None:
        bench = await open_log(FaultyDisk(3))
        await bench.write(b"0", b"1", b"2", b"3")
        await bench.upkeep.delete_records(bench.log, log_start)
        partition = Partition("t", TOPIC, 0, THREE, make_config({}, {}), bench.clock, ME)
        partition.high_watermark = known
        partition.hold(bench.log, saved)
        assert partition.high_watermark == bench.log.committed_end == expected

    virtual(check)()


@virtual
async def test_who_leads_after_following_begins_where_its_log_ends() -> None:
    made = await led()
    end = await made.write(2)
    made.partition.follow(replace(THREE, leader=2, leader_epoch=1))
    made.partition.told_committed(1)
    await made.bench.upkeep.begin_epochs([(made.bench.log, 2)])
    made.partition.lead(replace(THREE, leader_epoch=2))
    assert not made.bench.log.follows
    assert made.partition.leadership.epoch_start == end
    assert (made.high_watermark, made.partition.is_settled) == (1, False)
    assert made.partition.shown_ends == (UNKNOWN, UNKNOWN), "the leader before may have told of more"
    for broker_id in (2, 3):
        made.fetched(broker_id, end)
    assert (made.high_watermark, made.partition.is_settled) == (end, True)
    assert made.partition.shown_ends == (end, end)
    assert made.partition.end_of_epoch(0) == (0, end)
    assert made.partition.end_of_epoch(2) == (2, end)


@virtual
async def test_without_a_replica_there_is_nothing_to_open() -> None:
    bench = await open_log(FaultyDisk(3))
    elsewhere = Partition(
        "t", TOPIC, 0, replace(THREE, replicas=(2, 3), leader=2), make_config({}, {}), bench.clock, ME
    )
    refused(Code.NOT_LEADER, elsewhere.opened)
    here = Partition("t", TOPIC, 0, replace(THREE, leader=NOBODY), make_config({}, {}), bench.clock, ME)
    refused(Code.NOT_AVAILABLE, here.opened)
    assert "nobody leads it" in str(refused(Code.NOT_LEADER, here.leading))
    here.offline = PenstockError(Code.CORRUPT_LOG, "damaged")
    refused(Code.CORRUPT_LOG, here.opened)
    refused(Code.CORRUPT_LOG, here.leading)


@virtual
async def test_a_leader_that_is_cut_off_sends_clients_away_and_keeps_who_cannot_hear_waiting() -> None:
    made = await led()
    end = await made.write()
    made.fetched(2, 0)
    made.fetched(3, 0)
    made.wait(end - 1, "producer")
    arrived: list[str] = []
    made.partition.waiters.when_safe(end - 1, lambda _: arrived.append("coordinator"), patient=True)
    await asyncio.sleep(10)
    made.partition.look_again()
    assert not made.partition.is_cut_off, "the lease holds: the metadata store would have said so"
    made.partition.may_decide_alone = lambda: False
    made.fetched(2, 0)
    made.partition.look_again()
    assert made.partition.is_cut_off, "one of two in sync is silent"
    assert made.calls == [f"producer: {Code.NOT_LEADER.value}", "producer done"]
    assert arrived == [], "to fail would be to arrive, and tell what is not so"
    refused(Code.NOT_LEADER, made.partition.check_in_sync)
    made.fetched(3, end)
    made.fetched(2, end)
    made.partition.look_again()
    assert not made.partition.is_cut_off and arrived == ["coordinator"]
