"""Receive: messages of a queue one by one, each with what its receipt is made of.

What is leased is read right away. Offsets without a message that anybody may have (markers, holes, what was aborted),
and messages whose time is over, are settled on the way; what does not fit the answer is given back as if it had not
been leased.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Leased, Want
from penstock.engine.queues.expiry import Expiry
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import Counted, Run
from penstock.engine.reading import Cursor, Message
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock

_RECORD_BYTES = 40


class Delivery(NamedTuple):
    """One message, leased.

    Attributes:
        deadline: until then it is nobody else's, in epoch milliseconds.
        deliveries: how often it was leased, this time among them.
        attempts: how often that has failed.
    """

    message: Message
    lease_id: int
    deadline: int
    deliveries: int
    attempts: int


class Receiving:
    """The verb of one broker."""

    def __init__(self, queues: Queues, clock: Clock) -> None:
        self._queues = queues
        self.expiry = Expiry(clock, queues.tally)

    async def receive(self, partition: Partition, want: Want, max_bytes: int, wait_s: float) -> list[Delivery]:
        """What is ready, at least one message if there is any, or comes within that time. Raises PenstockError."""
        assert not want.bound, "bound leases have no receipts"
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            stirred = asyncio.Event()
            leased = await self._queues.lease(partition, want)
            if leased.ranges:
                deliveries = await self._read(partition, want.group, leased, max_bytes)
                if deliveries:
                    return deliveries
                continue  # there was nothing but what nobody may have
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return []
            self._queues.watch(partition, want.group, stirred.set)
            try:
                async with asyncio.timeout(left_s):
                    await stirred.wait()
            except TimeoutError:
                continue
            finally:
                self._queues.unwatch(partition, want.group, stirred.set)

    async def _read(self, partition: Partition, group: str, leased: Leased, max_bytes: int) -> list[Delivery]:
        """Raises PenstockError; what was leased is given back then."""
        by, epoch = Receipt(leased.lease_id), partition.leader_epoch
        deliveries: list[Delivery] = []
        changes: list[Change] = []
        ttl_ms = self._queues.rules(partition.topic, group).ttl_ms
        read_to = leased.ranges[0].first
        try:
            for counted in leased.ranges:
                if max_bytes <= 0:
                    break
                messages, behind, following = await _messages_in(partition, counted, max_bytes)
                if partition.leader_epoch != epoch:  # what was not read may be there all the same
                    raise PenstockError(Code.NOT_LEADER, f"{partition.name} got another leader meanwhile")
                read_to = behind
                if following > read_to:
                    self._queues.skip_soon(partition, group, leased.lease_id, read_to, following)
                max_bytes -= sum(map(size_of, messages))
                for message in messages:
                    if self.expiry.is_over(message, ttl_ms):
                        changes.append(Change(message.offset, message.offset, Verdict(VerdictKind.EXPIRE)))
                    else:
                        deliveries.append(
                            Delivery(message, leased.lease_id, leased.deadline, counted.deliveries, counted.attempts)
                        )
                changes += _gone(counted, messages, read_to)
        finally:
            changes += _unread(leased.ranges, read_to)
            if changes:
                self._queues.settle_soon(partition, group, by, changes)
        return deliveries


async def _messages_in(partition: Partition, counted: Counted, max_bytes: int) -> tuple[list[Message], int, int]:
    """The messages of a range, as far as they fit; the offset behind what was read; and that of the next message, where
    one was met behind the range: what was thinned may have left millions of offsets without any.
    """
    cursor = Cursor(partition, counted.first)
    found: list[Message] = []
    while cursor.offset <= counted.last and max_bytes > 0:
        messages = await cursor.records(max_bytes, 0, counted.last - cursor.offset + 1)
        if not messages:
            return found, counted.last + 1, 0
        for message in messages:
            if message.offset > counted.last:
                return found, counted.last + 1, message.offset
            if max_bytes <= 0:
                return found, message.offset, 0
            found.append(message)
            max_bytes -= size_of(message)
    return found, min(cursor.offset, counted.last + 1), 0


def _gone(counted: Counted, messages: Sequence[Message], read_to: int) -> list[Change]:
    """Where there is no message among what was read."""
    gone: list[Change] = []
    behind = counted.first
    for offset in [*(message.offset for message in messages), min(read_to, counted.last + 1)]:
        if offset > behind:
            gone.append(Change(behind, offset - 1, Verdict(VerdictKind.GONE)))
        behind = offset + 1
    return gone


def _unread(ranges: Sequence[Counted], read_to: int) -> list[Change]:
    rest = [Run(max(counted.first, read_to), counted.last) for counted in ranges if counted.last >= read_to]
    return [Change(run.first, run.last, Verdict(VerdictKind.UNREAD)) for run in rest]


def size_of(message: Message) -> int:
    """About what it takes in memory, and in an answer."""
    size = _RECORD_BYTES + len(message.key or b"") + len(message.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in message.headers)
