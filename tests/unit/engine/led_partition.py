"""A partition that this broker leads, with a log on a simulated disk and followers that fetch as a test says."""

from collections.abc import Callable
from uuid import UUID

from tests.simulated_broker import batch_of
from tests.simulated_log import Bench, open_log

from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.engine.topic_config import make_config
from penstock.errors import PenstockError
from penstock.testing.faulty_disk import FaultyDisk

ME = 1
TOPIC = UUID(int=5)
THREE = PartitionState((1, 2, 3), (1, 2, 3), ME, 0, revision=1)


class Led:
    """A partition of three replicas on a simulated log."""

    def __init__(self, bench: Bench, state: PartitionState, **settings: str) -> None:
        self.bench = bench
        config = make_config({name.replace("_", "."): value for name, value in settings.items()}, {})
        self.partition = Partition("t", TOPIC, 0, state, config, bench.clock, ME)
        self.partition.hold(bench.log, 0)
        self.calls: list[str] = []

    def append(self, count: int = 1) -> int:
        """The end after so many records."""
        values = [b"%d" % number for number in range(count)]
        return self.partition.append(memoryview(batch_of(values, self.bench.clock))).last_offset + 1

    async def write(self, count: int = 1) -> int:
        end = self.append(count)
        await self.bench.commit()
        return end

    def fetched(self, broker_id: int, offset: int, incarnation: int = 1) -> None:
        self.partition.replica_fetched(broker_id, incarnation, offset)

    def call(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)

    def wait(self, last_offset: int, name: str) -> None:
        """An `acks=all` that waits for a batch."""

        def told(error: PenstockError | None) -> None:
            if error is not None:
                self.calls.append(f"{name}: {error.code.value}")
            self.calls.append(f"{name} done")

        self.partition.waiters.when_safe(last_offset, told)

    @property
    def high_watermark(self) -> int:
        assert self.partition.opened().committed_end == self.partition.high_watermark
        return self.partition.high_watermark


async def led(state: PartitionState = THREE, **settings: str) -> Led:
    bench = await open_log(FaultyDisk(3), epoch=state.leader_epoch)
    made = Led(bench, state, **settings)
    made.partition.lead(state)
    return made
