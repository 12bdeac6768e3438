"""What subscribers hear of partitions, and how things stand when they hear it."""

from dataclasses import replace

from tests.simulated_broker import running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionSubscriber
from penstock.engine.topics import Topic


class Heard(PartitionSubscriber):
    """Notes each event, and whether the partition was led just then."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, bool]] = []

    def led(self, partition: Partition) -> None:
        self.events.append(("led", partition.name, partition.led is not None))

    def lost(self, partition: Partition) -> None:
        self.events.append(("lost", partition.name, partition.led is not None))

    async def deleted(self, topic: Topic) -> None:
        self.events.append(("deleted", topic.name, any(partition.led is not None for partition in topic.partitions)))


@virtual
async def test_a_loss_is_told_before_it_and_the_rest_behind() -> None:
    async with running(Machine().broker()) as broker:
        heard = Heard()
        broker.engine.events.subscribe(heard)
        topic = await broker.engine.create_topic("t", 2)
        assert heard.events == [("led", "t-0", True), ("led", "t-1", True)]
        heard.events.clear()
        partition = topic.partitions[1]
        state = partition.state
        partition.follow(replace(state, leader=2, leader_epoch=state.leader_epoch + 1))
        partition.follow(replace(state, leader=3, leader_epoch=state.leader_epoch + 2))
        partition.lead(replace(state, leader_epoch=state.leader_epoch + 3))
        assert heard.events == [("lost", "t-1", True), ("led", "t-1", True)], "who follows has nothing to lose"
        heard.events.clear()
        await broker.engine.delete_topic(topic)
        assert heard.events == [("deleted", "t", False)]


@virtual
async def test_subscribers_hear_in_the_order_in_which_they_came() -> None:
    async with running(Machine().broker()) as broker:
        order: list[int] = []

        class Numbered(PartitionSubscriber):
            def __init__(self, number: int) -> None:
                self.number = number

            def led(self, partition: Partition) -> None:
                order.append(self.number)

        for number in (1, 2, 3):
            broker.engine.events.subscribe(Numbered(number))
        await broker.engine.create_topic("t", 1)
        assert order == [1, 2, 3]
