"""A sink in the test's own memory, which fails when it is told to: `memory: NAME`."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from penstock.pipelines.keys import Key
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.contract import BatchId, Context, Reject, Rejected

KEYS = (Key("memory", "text", "Its name.", required=True),)
ABOUT = EXAMPLE = ""

Rows = list[dict[str, Any]]


class Memory:
    """What one sink holds, and its faults: each is called once, at a named point, with the batch."""

    def __init__(self) -> None:
        self.batches: dict[BatchId, Rows] = {}
        self.writes: list[BatchId] = []
        self.columns: list[str] = []
        self.faults: dict[str, list[Callable[[BatchId], None]]] = defaultdict(list)
        self.refuses: Callable[[dict[str, Any]], str] = lambda _: ""

    def rows(self) -> Rows:
        return [row for rows in self.batches.values() for row in rows]

    def meet(self, point: str, identity: BatchId) -> None:
        if self.faults[point]:
            self.faults[point].pop(0)(identity)


MEMORIES: dict[str, Memory] = defaultdict(Memory)


def raising(error: Exception) -> Callable[[BatchId], None]:
    def fault(_: BatchId) -> None:
        raise error

    return fault


def open_sink(spec: SinkSpec, context: Context) -> "MemorySink":
    return MemorySink(MEMORIES[spec.options["memory"]])


class MemorySink:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def probe(self) -> None:
        pass

    def prepare(self, schema: Any) -> None:
        self._memory.columns = schema.fieldNames()

    def is_written(self, identity: BatchId) -> bool:
        mine = [each.batch for each in self._memory.batches if each.query == identity.query]
        return identity.repeats(max(mine, default=None), "memory")

    def write(self, rows: Any, identity: BatchId, reject: Reject) -> int:
        memory = self._memory
        memory.writes.append(identity)
        memory.meet("before", identity)
        found = [row.asDict(recursive=True) for row in rows.collect()]
        reasons = [memory.refuses(row) for row in found]
        reject([Rejected(str(row).encode(), why) for row, why in zip(found, reasons, strict=True) if why])
        taken = [row for row, why in zip(found, reasons, strict=True) if not why]
        assert identity not in memory.batches, f"{identity} was written before"
        memory.batches[identity] = taken
        memory.meet("after", identity)
        return len(taken)

    def close(self) -> None:
        pass
