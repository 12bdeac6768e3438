"""Burials: what may not be delivered any more becomes a dead letter, in one place or the other, never in none or both.

    dying  ->  noted: which batch of which producer  ->  written to the topic of dead letters  ->  settled
                     (in the ledger)                     (taken once by that producer's number)     (in the ledger)

Each arrow waits until the step before it is safe. Whoever leads after a crash in between finds the note and sends the
same batch again; the log of dead letters knows it by its number. Nobody can lease what is dying.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.engine.coordination.outcome import Outcome, Reply
from penstock.engine.coordination.shard import Shard
from penstock.engine.forwarding import Forwarding
from penstock.engine.partition import Partition
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.publishing import ALL
from penstock.engine.queues import entries
from penstock.engine.queues.answers import DyingMessages
from penstock.engine.queues.headers import Death, Reason, make_death_headers, make_return_headers, strip_reserved
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.names import QueueName, dead_letter_topic, parse_queue_name
from penstock.engine.queues.receiving import size_of
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.settings import OWN_TARGET
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.window import Run
from penstock.engine.reading import Cursor, Message
from penstock.engine.topics import Topic, Topics
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.records.build import NewRecord, build_batch
from penstock.tasks import Tasks

log_ = get_logger("queues")
_MOST_AT_ONCE: Final = 500
_MOST_BYTES: Final = 512 * 1024
_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_LAST_SEQUENCE: Final = 0x7FFFFFFF
_NEVER_WRITTEN: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_ID})
"""The topic was deleted, or its log has lost what this producer wrote before; another batch is noted then."""
_REASONS: Final = {
    entries.Cause.REJECTED: Reason.REJECTED,
    entries.Cause.ATTEMPTS: Reason.ATTEMPTS,
    entries.Cause.DELIVERIES: Reason.DELIVERIES,
    entries.Cause.EXPIRED: Reason.EXPIRED,
    entries.Cause.OVERFLOW: Reason.OVERFLOW,
}


class TopicMaker(Protocol):
    async def __call__(self, name: str, source: Topic) -> Topic:
        """The topic of dead letters of another one, made if it is not there. Raises PenstockError."""
        ...


class Burials:
    """Of one broker."""

    def __init__(
        self,
        topics: Topics,
        rulebook: Rulebook,
        forwarding: Forwarding,
        producer_ids: ProducerIds,
        make_topic: TopicMaker,
        clock: Clock,
        tasks: Tasks,
        tally: Tally,
    ) -> None:
        self._topics = topics
        self._rulebook = rulebook
        self._forwarding = forwarding
        self._producer_ids = producer_ids
        self._make_topic = make_topic
        self._clock = clock
        self._tasks = tasks
        self._tally = tally
        self._running: set[Partition] = set()

    def after_step(self, shard: Shard[LedgerMachine], machine: LedgerMachine) -> None:
        """Begin to bury, if anything is dying and nobody does it yet."""
        if machine.is_any_dying and shard.partition not in self._running:
            self._running.add(shard.partition)
            self._tasks.spawn(self._run(shard), f"bury of {shard.partition.name}")

    async def _run(self, shard: Shard[LedgerMachine]) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while shard.partition.led is not None and (machine := shard.loaded) is not None:
                shard.end_turn()  # what is dying may not be written yet
                dying = machine.dying(_MOST_AT_ONCE)
                if not dying:
                    return
                failed = False
                for messages in dying:
                    try:
                        await self._bury(shard, messages)
                    except (PenstockError, OSError) as error:
                        failed = True
                        self._complain(shard, messages, error)
                if failed:
                    await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if failed else _FIRST_PAUSE_S
        finally:
            self._running.discard(shard.partition)

    def _complain(self, shard: Shard[LedgerMachine], messages: DyingMessages, error: Exception) -> None:
        self._tally.burial_failed()
        log_.limited("bury").warning(
            "messages cannot be moved to dead letters yet; they are kept where they are",
            partition=shard.partition.name,
            group=messages.group,
            error=str(error),
        )

    async def _bury(self, shard: Shard[LedgerMachine], messages: DyingMessages) -> None:
        source = shard.partition.attached_to
        assert source is not None
        burial = messages.begun or await self._plan(shard, source, messages)
        await shard.ask(lambda machine, now, to: Outcome(replies=(Reply(to, None),)))  # what was noted is safe then
        records = [await self._letter(shard, source, messages.group, offset) for offset in _offsets(burial.runs)]
        batch = build_batch(records, producer_id=burial.producer_id, producer_epoch=0, base_sequence=burial.sequence)
        try:
            partition = self._topics.partition_by_id(burial.topic_id, burial.partition)
            await self._forwarding.publish_again(partition, batch, ALL, _TIMEOUT_S)
        except PenstockError as error:
            if error.code in _NEVER_WRITTEN:
                await shard.ask(lambda machine, now, to: machine.forget_burial(now, to, messages.group))
            raise
        cause = self._cause(await shard.machine(), messages.group, burial)
        await shard.ask(lambda machine, now, to: machine.buried(now, to, messages.group, burial))
        if cause is entries.Cause.REDRIVEN:
            self._tally.redriven(burial.size)
        else:
            self._tally.dead_letters(_REASONS[cause], burial.size)

    @staticmethod
    def _cause(machine: LedgerMachine, group: str, burial: entries.Burying) -> entries.Cause:
        """Of all in it: what is buried together dies for the same reason."""
        dead = machine.dead(group, burial.runs[0].first)
        return entries.Cause.ATTEMPTS if dead is None else dead.cause

    async def _plan(self, shard: Shard[LedgerMachine], source: Partition, messages: DyingMessages) -> entries.Burying:
        """Decide where to, and as what, and have it noted."""
        target = await self._target(shard, source, messages)
        runs = tuple(await _that_fit(source, messages.runs))
        partition = source.index % len(target.partitions)
        last = (await shard.machine()).last_burial(messages.group)
        if last is not None and (last.topic_id, last.partition) == (target.topic_id, partition):
            sequence = (last.sequence + last.size) & _LAST_SEQUENCE
            burial = entries.Burying(target.topic_id, partition, last.producer_id, sequence, runs)
        else:
            producer_id = await self._producer_ids.take()
            burial = entries.Burying(target.topic_id, partition, producer_id, 0, runs)
        await shard.ask(lambda machine, now, to: machine.bury(now, to, messages.group, burial))
        return burial

    async def _target(self, shard: Shard[LedgerMachine], source: Partition, messages: DyingMessages) -> Topic:
        topic = self._topics.get(source.topic)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {source.topic!r} was deleted")
        dead = (await shard.machine()).dead(messages.group, messages.runs[0].first)
        if dead is not None and dead.cause is entries.Cause.REDRIVEN:
            back_to = self._topics.get(parse_queue_name(dead.reason).topic)
            if back_to is None:
                raise PenstockError(Code.UNKNOWN_TOPIC, f"queue {dead.reason!r} was deleted; its dead letters stay")
            return back_to
        given = self._rulebook.rules(source.topic, messages.group).dead_letter
        if given is None or given == OWN_TARGET:  # none any more: what was dying before is not dropped for that
            return await self._make_topic(dead_letter_topic(QueueName(source.topic, messages.group)), topic)
        return self._topics.get(given) or await self._make_topic(given, topic)

    async def _letter(self, shard: Shard[LedgerMachine], source: Partition, group: str, offset: int) -> NewRecord:
        """The dead letter of a message; where its record is gone, one that says so: their number was noted.

        Also of one that was purged since, for the same reason.
        """
        dead = (await shard.machine()).dead(group, offset)
        message = await _message_at(source, offset)
        now = self._clock.now_ms()
        if dead is not None and dead.cause is entries.Cause.REDRIVEN and message is not None:
            return NewRecord(message.key, message.value, make_return_headers(message.headers, now), now)
        cause = dead.cause if dead is not None else entries.Cause.ATTEMPTS
        death = Death(
            reason=_REASONS.get(cause, Reason.REJECTED),
            topic=source.topic,
            topic_id=source.topic_id,
            partition=source.index,
            offset=offset,
            group=group,
            attempts=dead.attempts if dead is not None else 0,
            deliveries=dead.deliveries if dead is not None else 0,
            first_ms=message.timestamp if message is not None else now,
            dead_ms=now,
            detail="its record is gone" if message is None else dead.reason if dead is not None else "",
        )
        if message is None or not self._rulebook.copies_dead_letters(source.topic, group):
            return NewRecord(None, None, make_death_headers(death), now)
        headers = (*strip_reserved(message.headers), *make_death_headers(death))
        return NewRecord(message.key, message.value, headers, now)


def _offsets(runs: Sequence[Run]) -> list[int]:
    return [offset for run in runs for offset in range(run.first, run.last + 1)]


async def _message_at(partition: Partition, offset: int) -> Message | None:
    if offset < partition.log_start:
        return None
    found = await Cursor(partition, offset).records(1, 0, 1)
    return found[0] if found and found[0].offset == offset else None


async def _that_fit(partition: Partition, runs: Sequence[Run]) -> list[Run]:
    """The first of them that make a batch of a decent size; at least one."""
    room = _MOST_BYTES
    fit: list[Run] = []
    for offset in _offsets(runs):
        message = await _message_at(partition, offset)
        room -= size_of(message) if message is not None else 0
        if room < 0 and fit:
            break
        if fit and fit[-1].last + 1 == offset:
            fit[-1] = Run(fit[-1].first, offset)
        else:
            fit.append(Run(offset, offset))
    return fit
