"""To Kafka's clients, what is attached to partitions is not there: not by its name, and not by its id."""

from tests.attached_counter import Counters
from tests.doors.kafka import Client, Door, batch_of, with_door

from penstock.engine.topics import Topic

UNKNOWN_TOPIC, INVALID_TOPIC, UNKNOWN_ID = 3, 17, 100
NAME = "t~count"


async def attached(door: Door) -> tuple[Client, Topic]:
    """A topic with a counter beside it that has been stepped, and a client."""
    await door.topic(partitions=1)
    counters = Counters(door.engine)
    assert await counters.step(door.engine.topics.partition("t", 0), "a") == 1
    topic = door.engine.topics.get("t")
    assert topic is not None and topic.attached["count"].partitions[0].end_offset > 0
    return await door.client(), topic.attached["count"]


def test_no_list_and_no_description_names_it() -> None:
    async def body(door: Door) -> None:
        client, holder = await attached(door)
        everything = await client.ask("metadata", 12, topics=None, allow_auto_topic_creation=False)
        assert [topic["name"] for topic in everything["topics"]] == ["t"]
        asked: list[dict[str, object]] = [{"name": NAME, "topic_id": None}]
        (named,) = (await client.ask("metadata", 12, topics=asked, allow_auto_topic_creation=True))["topics"]
        assert named["error_code"] == INVALID_TOPIC, "nor is a topic of that name made"
        asked = [{"name": None, "topic_id": holder.topic_id}]
        (found,) = (await client.ask("metadata", 12, topics=asked, allow_auto_topic_creation=False))["topics"]
        assert found["error_code"] == UNKNOWN_ID
        logs = await client.ask("describe_log_dirs", 4, topics=None)
        assert [topic["name"] for each in logs["results"] for topic in each["topics"]] == ["t"]
        assert [topic.name for topic in door.engine.topics] == ["t"]

    with_door(body)


def test_it_can_be_neither_read_nor_written() -> None:
    async def body(door: Door) -> None:
        client, holder = await attached(door)
        end = holder.partitions[0].end_offset
        for version, topic, refused in ((12, NAME, UNKNOWN_TOPIC), (13, holder.topic_id, UNKNOWN_ID)):
            answer = await client.fetch(version=version, wanted={topic: {0: 0}})
            (row,) = answer["responses"][0]["partitions"]
            assert (row["error_code"], row["records"]) == (refused, b"")
        assert (await client.produce(batch_of(b"x"), topic=NAME))["error_code"] in (UNKNOWN_TOPIC, INVALID_TOPIC)
        assert holder.partitions[0].end_offset == end

    with_door(body)
