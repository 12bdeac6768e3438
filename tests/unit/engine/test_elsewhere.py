"""What a leader gives other brokers for somebody: as much as the same subject would get from the leader itself."""

import pytest
from tests.rules import Only
from tests.simulated_broker import Broker, running, virtual

from penstock.engine.access import NotAuthorised, Operation, Subject
from penstock.engine.elsewhere import WantedEnds, WantedRecords
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

ANN = Subject("User:ann", "10.0.0.1", "toy")


@virtual
async def test_records_take_the_right_to_read_and_ends_that_to_describe() -> None:
    async with running(Broker(FaultyDisk(5), MemoryStore(), VirtualClock())) as broker:
        partition = (await broker.engine.create_topic("t", 1)).partitions[0]
        elsewhere, acting = broker.engine.elsewhere, broker.engine.acting_as(ANN)
        ends = WantedEnds(partition.topic_id, 0, -1, None, True, ANN)
        records = WantedRecords(partition.topic_id, 0, -1, 0, 100, 0, True, ANN)
        broker.engine.access.policy = Only(ANN, Operation.DESCRIBE)
        assert await elsewhere.give_ends(ends) == await acting.find_ends(partition)
        with pytest.raises(NotAuthorised):
            await elsewhere.give(records)
        broker.engine.access.policy = Only(ANN, Operation.READ)
        assert (await elsewhere.give(records)).found.data is None
        for ask in (elsewhere.give_ends(ends), acting.find_ends(partition)):
            with pytest.raises(NotAuthorised):
                await ask
