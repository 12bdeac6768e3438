"""Messages that have waited for longer than they may. A message's own time comes before its queue's."""

from typing import Final

from penstock.engine.partition import Partition
from penstock.engine.queues.group import joined
from penstock.engine.queues.headers import TTL_MS, read_headers
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.window import Run
from penstock.engine.reading import Message, Slice, decode
from penstock.engine.steady_clock import SteadyClock
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.records.batch import decode_header
from penstock.records.compression import Codec

_TTL_NAME: Final = TTL_MS.encode()


class Expiry:
    """Of one broker.

    A wall clock that jumps makes nothing old, nor does one that is set back and stamps what is sent with an earlier
    time: the earlier of both clocks counts.
    """

    def __init__(self, clock: Clock, tally: Tally) -> None:
        self._clock = clock
        self._steady_clock = SteadyClock(clock)
        self._tally = tally

    def is_over(self, message: Message, ttl_ms: int | None) -> bool:
        """
        Args:
            ttl_ms: of its queue.
        """
        own = None
        if message.headers:
            said = read_headers(message.headers)
            own = said.ttl_ms
            self._tally.unread_headers(len(said.unread))
        longest = ttl_ms if own is None else own
        return longest is not None and message.timestamp + longest <= self._now_ms()

    async def find_over(
        self, partition: Partition, batch: Slice, first: int, last: int, ttl_ms: int | None
    ) -> list[Run]:
        """What is over of some offsets of one batch, which is opened only if anything can be.

        Nothing of one that cannot be opened: who gets it finds that out, and says so.
        """
        data = bytes(batch.file.read_at(batch.size, batch.position))
        if ttl_ms is None and decode_header(data).codec == Codec.NONE and _TTL_NAME not in data:
            return []
        disk = partition.leading().shelf.disk
        try:
            messages, _ = await disk.run(decode, data, (), first, partition.name, last - first + 1)
        except PenstockError as error:
            if error.code is not Code.CORRUPT_LOG:
                raise
            return []
        return joined(each.offset for each in messages if each.offset <= last and self.is_over(each, ttl_ms))

    def _now_ms(self) -> int:
        return min(self._clock.now_ms(), self._steady_clock.now_ms())
