"""A ledger's state, written into its own log again, so that what came before can go.

Whoever leads next reads the log from its start, so the log must not grow with what was ever done. When the entries
since the last saved state outnumber that state, it is written anew, piece by piece between other steps, and when all of
it is committed the log begins there. Nothing is removed before.
"""

from collections.abc import Awaitable, Callable, Iterator

from penstock.engine.coordination.outcome import Outcome, Reply
from penstock.engine.coordination.schemas import Entry
from penstock.engine.coordination.shard import Shard
from penstock.engine.partition import Partition
from penstock.engine.queues.machine import LedgerMachine
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.storage.log.log import Log
from penstock.tasks import Tasks
from penstock.turns import Turns

log_ = get_logger("queues")
_PIECES_AT_ONCE = 16

MoveStart = Callable[[Log, int], Awaitable[None]]


class Saving:
    """Of all ledgers of a broker.

    Args:
        move_start: removes what lies below an offset of a log.
        least: entries behind a saved state before the next one.
    """

    def __init__(self, tasks: Tasks, turns: Turns, move_start: MoveStart, least: int) -> None:
        self._least = least
        self._tasks = tasks
        self._turns = turns
        self._move_start = move_start
        self._sizes: dict[Partition, int] = {}
        """Entries of the last state that was saved here."""
        self._running: set[Partition] = set()

    def after_step(self, shard: Shard[LedgerMachine]) -> None:
        ledger, log = shard.partition, shard.partition.led
        if log is None or ledger in self._running:
            return
        if log.end_offset - log.log_start > self._least + 2 * self._sizes.get(ledger, 0):
            self._running.add(ledger)
            self._tasks.spawn(self._run(shard), f"save {ledger.name}")

    def forget(self, ledger: Partition) -> None:
        self._sizes.pop(ledger, None)

    async def _run(self, shard: Shard[LedgerMachine]) -> None:
        try:
            await self._save(shard)
        except (PenstockError, OSError) as error:  # another leader does it, or the next round
            log_.limited("save").info("ledger is not saved", ledger=shard.partition.name, error=str(error))
        finally:
            self._running.discard(shard.partition)

    async def _save(self, shard: Shard[LedgerMachine]) -> None:
        machine = await shard.machine()
        shard.end_turn()
        log = shard.partition.leading()
        begin = log.end_offset
        pieces = machine.saved()
        written = 0
        while shard.loaded is machine:
            taken = list(_some(pieces))
            if not taken:
                break
            written += len(taken)
            shard.step(lambda _, now, taken=taken: Outcome(tuple(taken)))  # type: ignore[misc]
            await self._turns.next()
        else:
            return  # it was thrown away meanwhile
        await shard.ask(lambda _, now, to: Outcome(replies=(Reply(to, None),)))
        if shard.loaded is machine and shard.partition.led is log:
            self._sizes[shard.partition] = written
            await self._move_start(log, begin)


def _some(pieces: Iterator[list[Entry]]) -> Iterator[Entry]:
    for _ in range(_PIECES_AT_ONCE):
        yield from next(pieces, ())
