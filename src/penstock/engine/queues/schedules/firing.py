"""Publishes what schedules have planned, each planned time once.

    ready  ->  noted: which batch of which producer  ->  published to its partition   ->  done
               (beside partition 0)                      (taken once by that number)      (beside partition 0)

Each arrow waits until the step before it is safe. Whoever leads after a crash in between finds the note and sends the
same batch again, wherever that partition is led by then; its log knows the batch by its number. What is due together
goes as one batch for each partition, and a partition that cannot take its own keeps no other waiting.

The wall clock says when a time has come. It is looked at again after a while at most, as it may be set meanwhile.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from penstock.engine.coordination.outcome import Outcome, Reply
from penstock.engine.coordination.shard import Shard
from penstock.engine.forwarding import Forwarding
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.publishing import ALL
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.schedules.entries import Round
from penstock.engine.queues.schedules.machine import ScheduleMachine
from penstock.engine.queues.schedules.schedule import Definition, Schedule
from penstock.engine.queues.schedules.zones import Zones
from penstock.engine.queues.tally import Tally
from penstock.engine.topics import Topic, Topics
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.records.batch import HEADER_BYTES
from penstock.records.build import NewRecord, build_batch
from penstock.records.partitioning import WITHOUT_SIGN, murmur2
from penstock.tasks import Tasks
from penstock.turns import Turns

log_ = get_logger("schedules")
_LOOK_AGAIN_S: Final = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_TIMEOUT_S: Final = 30.0
_LOOKED_AT: Final = 50
"""Expressions in one turn; some milliseconds."""
_MUCH_BEHIND_MS: Final = 60_000
_MOST_AT_ONCE: Final = 500
_MOST_BYTES: Final = 512 * 1024


class Firing:
    """Of one broker."""

    def __init__(
        self,
        topics: Topics,
        rulebook: Rulebook,
        forwarding: Forwarding,
        producer_ids: ProducerIds,
        zones: Zones,
        clock: Clock,
        tasks: Tasks,
        turns: Turns,
        tally: Tally,
    ) -> None:
        self.topics = topics
        self.rulebook = rulebook
        self.forwarding = forwarding
        self.producer_ids = producer_ids
        self.zones = zones
        self.clock = clock
        self.tasks = tasks
        self.turns = turns
        self.tally = tally
        self._running: dict[Partition, _Runner] = {}

    def check_known(self, topic: Topic, group: str) -> None:
        """Whether somebody has made such a queue. Raises PenstockError UNKNOWN_QUEUE."""
        if not self.rulebook.is_known(topic.name, group):
            name = QueueName(topic.name, group)
            raise PenstockError(
                Code.UNKNOWN_QUEUE,
                f"there is no queue {str(name)!r}",
                help=f"only queues that were made as such have schedules: 'penstock queue create {name}'",
            )

    def after_step(self, shard: Shard[ScheduleMachine], machine: ScheduleMachine) -> None:
        """Something may have to be done at another time than it was."""
        runner = self._running.get(shard.partition)
        if runner is not None:
            runner.woken.set()
        elif machine.has_any:
            runner = self._running[shard.partition] = _Runner(self, shard)
            self.tasks.spawn(self._run(runner, shard.partition), f"schedules of {shard.partition.name}")

    async def _run(self, runner: "_Runner", partition: Partition) -> None:
        try:
            await runner.run()
        finally:
            del self._running[partition]


class _Runner:
    """Of the schedules of one topic, while this broker leads them."""

    def __init__(self, firing: Firing, shard: Shard[ScheduleMachine]) -> None:
        self._firing = firing
        self._shard = shard
        self._sending: set[int] = set()
        """Partitions that a round is sent to."""
        self._turn = 0
        """Where messages without a key go next."""
        self.woken = asyncio.Event()

    def _machine(self) -> ScheduleMachine | None:
        """None if somebody else leads, or will."""
        return self._shard.loaded if self._shard.partition.led is not None else None

    async def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while (machine := self._machine()) is not None and machine.has_any:
            self.woken.clear()
            try:
                await self._look(machine)
                if await self._note(machine):
                    continue
            except (PenstockError, OSError) as error:
                log_.limited("schedules").warning(
                    "schedules wait", partition=self._shard.partition.name, error=str(error)
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            await self._wait(machine)

    async def _wait(self, machine: ScheduleMachine) -> None:
        due_ms, wait_s = machine.next_ms, _LOOK_AGAIN_S
        if due_ms is not None:
            wait_s = min(max(due_ms - self._firing.clock.now_ms(), 1) / 1000, wait_s)
        try:
            async with asyncio.timeout(wait_s):
                await self.woken.wait()
        except TimeoutError:
            return

    async def _look(self, machine: ScheduleMachine) -> None:
        """Plan what is not planned yet, see whose time has come, and send what was noted."""
        firing = self._firing
        await firing.zones.load(machine.zones)
        while machine.unplanned and self._machine() is machine:
            await firing.turns.next()
            numbers = list(islice(machine.unplanned, _LOOKED_AT))
            self._warn_of_clock([machine.get(number) for number in numbers])
            for schedule in machine.plan(numbers):
                self._complain(schedule, f"time zone {schedule.definition.zone!r} is not known on this broker")
        while self._machine() is machine and machine.come(firing.clock.now_ms(), _LOOKED_AT):
            await firing.turns.next()
        for partition, noted in machine.rounds():
            if partition not in self._sending:
                self._sending.add(partition)
                firing.tasks.spawn(self._send(partition, noted), f"fire {self._shard.partition.name}")

    def _warn_of_clock(self, schedules: Iterable[Schedule]) -> None:
        """If it is behind what was fired for already: they wait until it has come so far again."""
        latest_ms = max((each.progress.base_ms for each in schedules), default=0)
        if latest_ms > self._firing.clock.now_ms() + _MUCH_BEHIND_MS:
            log_.limited("clock").warning(
                "the clock is behind times that schedules have fired for; they wait until it has come so far again",
                topic=self._shard.partition.topic,
                fired_ms=latest_ms,
            )

    # --- noting

    async def _note(self, machine: ScheduleMachine) -> bool:
        """Note a round for a partition that has none, if anything is ready for it; whether there was any."""
        firing, source = self._firing, self._shard.partition.attached_to
        assert source is not None
        topic = firing.topics.get(source.topic)
        if topic is None or self._machine() is not machine:
            return False
        for partition, schedules in (await self._rounds(topic, machine)).items():
            if schedules:
                await self._note_round(machine, partition, [each.number for each in schedules])
                return True
        return False

    async def _note_round(self, machine: ScheduleMachine, partition: int, numbers: Sequence[int]) -> None:
        firing, producer_id = self._firing, machine.round(partition).producer_id
        if producer_id < 0:
            producer_id = await firing.producer_ids.take()
        for some in _parts(numbers, _LOOKED_AT):
            now_ms = firing.clock.now_ms()
            late = [number for number in some if machine.is_late(number, now_ms)]
            if late:
                await firing.turns.next()
                machine.come_again(now_ms, late)
        if self._machine() is machine:
            await self._shard.ask(lambda machine, now, to: machine.note(to, partition, producer_id, numbers))

    async def _rounds(self, topic: Topic, machine: ScheduleMachine) -> dict[int, list[Schedule]]:
        """What is ready, by the partition it goes to, as far as that has room for another round, and it fits one.

        Some of it, if it is very much.
        """
        free = [each.index for each in topic.partitions if not machine.round(each.index).fires]
        if not free:
            return {}
        led = [index for index in free if topic.partitions[index].state.leader != NOBODY] or free
        self._turn += 1
        keyless = led[self._turn % len(led)]
        room = dict.fromkeys(free, min(_MOST_BYTES, topic.config.max_message_bytes) - HEADER_BYTES)
        found: dict[int, list[Schedule]] = {}
        for at, schedule in enumerate(machine.ready):
            if at % _MOST_AT_ONCE == 0 and at:
                if any(len(some) >= _MOST_AT_ONCE for some in found.values()):
                    break
                await self._firing.turns.next()
            definition = schedule.definition
            if not self._firing.rulebook.is_known(topic.name, definition.group):
                continue  # it was deleted, or this broker has not heard of it yet
            if (why := why_never(topic, schedule.definition)) is not None:
                self._complain(schedule, why)
                self._shard.step(lambda machine, now, number=schedule.number: machine.pass_over(number))  # type: ignore[misc]
                continue
            partition = keyless
            if definition.key is not None:
                partition = (murmur2(definition.key) & WITHOUT_SIGN) % len(topic.partitions)
            some = found.setdefault(partition, [])
            if (
                partition in room
                and len(some) < _MOST_AT_ONCE
                and (not some or definition.size_bytes <= room[partition])
            ):
                some.append(schedule)
                room[partition] -= definition.size_bytes
        return found

    # --- sending

    async def _send(self, partition: int, noted: Round) -> None:
        """Until it is there and that is kept, or somebody else leads."""
        pause_s = _FIRST_PAUSE_S
        try:
            while (machine := self._machine()) is not None and machine.round(partition) == noted:
                try:
                    await self._publish(machine, partition, noted)
                except (PenstockError, OSError) as error:
                    self._firing.tally.schedule_failed()
                    log_.limited("fire").warning(
                        "messages of schedules cannot be published yet",
                        topic=self._shard.partition.topic,
                        partition=partition,
                        error=str(error),
                    )
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._sending.discard(partition)
            self.woken.set()

    async def _publish(self, machine: ScheduleMachine, partition: int, noted: Round) -> None:
        firing, shard, source = self._firing, self._shard, self._shard.partition.attached_to
        assert source is not None
        batch = self._batch(machine, noted)
        await self._until_safe()
        target = firing.topics.partition_by_id(source.topic_id, partition)
        try:
            await firing.forwarding.publish_again(target, batch, ALL, _TIMEOUT_S)
        except PenstockError as error:
            if error.code is not Code.OUT_OF_ORDER_SEQUENCE:
                raise
            # That log has lost what this producer wrote before, and this batch is not there either.
            await shard.ask(lambda machine, now, to: machine.undo(to, partition, noted))
            return
        fired_ms = firing.clock.now_ms()
        await shard.ask(lambda machine, now, to: machine.done(fired_ms, to, partition, noted))
        firing.tally.scheduled(len(noted.fires))

    async def _until_safe(self) -> None:
        """Return when everything that was noted is."""
        await self._shard.ask(lambda machine, now, to: Outcome(replies=(Reply(to, None),)))

    def _batch(self, machine: ScheduleMachine, noted: Round) -> bytes:
        now_ms = self._firing.clock.now_ms()
        records = []
        for number, planned_ms in noted.fires:
            said = machine.get(number).definition
            records.append(NewRecord(said.key, said.value, said.record_headers(planned_ms), now_ms))
        return build_batch(records, producer_id=noted.producer_id, producer_epoch=0, base_sequence=noted.sequence)

    def _complain(self, schedule: Schedule, why: str) -> None:
        self._firing.tally.schedule_failed()
        log_.limited("schedule").error(
            "a schedule cannot fire",
            schedule=schedule.definition.name,
            group=schedule.definition.group,
            topic=self._shard.partition.topic,
            error=why,
        )


def why_never(topic: Topic, definition: Definition) -> str | None:
    """Why its message cannot be published, as the topic is set now."""
    config = topic.config
    if config.written_by_broker:
        return f"topic {topic.name!r} is written by the broker only"
    if config.compacts and definition.key is None:
        return f"topic {topic.name!r} is compacted, and the message has no key"
    if definition.size_bytes + HEADER_BYTES > config.max_message_bytes:
        return f"its message has up to {definition.size_bytes} bytes; {topic.name!r} takes {config.max_message_bytes}"
    return None


def _parts(numbers: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    return (numbers[at : at + most] for at in range(0, len(numbers), most))
