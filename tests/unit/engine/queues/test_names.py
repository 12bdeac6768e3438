"""Queue names there and back, and topics for dead letters that can always be made."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues.names import LONGEST_GROUP, QueueName, dead_letter_topic, parse_queue_name
from penstock.engine.topic_names import LONGEST_NAME, check_name
from penstock.errors import Code, PenstockError

calm = settings(deadline=None)  # a busy machine is no failure

LEGAL = string.ascii_letters + string.digits + "._-"
topics = st.text(LEGAL, min_size=1, max_size=LONGEST_NAME).filter(lambda name: name not in (".", ".."))
groups = st.text(LEGAL, min_size=1, max_size=300) | st.text(min_size=1, max_size=LONGEST_GROUP)
queues = st.builds(QueueName, topics, groups) | topics.map(lambda name: QueueName(name, name))


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("orders", QueueName("orders", "orders")),
        ("orders:billing", QueueName("orders", "billing")),
        ("orders:a:b c", QueueName("orders", "a:b c")),
    ],
)
def test_a_queue_is_named_after_its_topic_and_its_group(text: str, queue: QueueName) -> None:
    assert parse_queue_name(text) == queue
    assert str(queue) == text


def test_the_group_of_the_topics_name_is_left_out() -> None:
    assert str(parse_queue_name("orders:orders")) == "orders"


@calm
@given(queues)
def test_what_is_written_is_read_again(queue: QueueName) -> None:
    assert parse_queue_name(str(queue)) == queue


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "topic name ''"),
        (":billing", "topic name ''"),
        ("a b", "topic name 'a b'"),
        ("..", "topic name '..'"),
        ("orders:", "no group behind its ':'"),
        ("orders:" + "x" * (LONGEST_GROUP + 1), "its group has 1025 characters, 1024 at most"),
        ("x" * 100_000, "topic name 'xxx"),
    ],
)
def test_what_is_no_name_is_told_with_the_way_out(text: str, why: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse_queue_name(text)
    assert refused.value.code is Code.INVALID_QUEUE
    assert why in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "topic:group" in refused.value.help


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        (QueueName("orders", "orders"), "dlq.orders"),
        (QueueName("orders", "billing"), "dlq.orders.billing"),
        (QueueName("o" * 245, "o" * 245), "dlq." + "o" * 245),
    ],
)
def test_dead_letters_have_a_topic_named_after_the_queue(queue: QueueName, topic: str) -> None:
    assert dead_letter_topic(queue) == topic


@calm
@given(queues)
def test_dead_letters_have_a_topic_that_can_be_made(queue: QueueName) -> None:
    topic = dead_letter_topic(queue)
    check_name(topic)
    assert topic.startswith(f"dlq.{queue.topic}"[: LONGEST_NAME - 17])


@calm
@given(st.lists(queues, min_size=2, max_size=6, unique=True))
def test_queues_share_a_topic_only_where_a_dot_alone_tells_them_apart(different: list[QueueName]) -> None:
    made = {dead_letter_topic(queue) for queue in different}
    by_dots = {str(queue).replace(":", ".") for queue in different}
    assert len(made) >= len(by_dots)


def test_names_that_lose_the_same_characters_differ() -> None:
    long = "o" * 240
    same = [QueueName("a", "b c"), QueueName("a", "b/c"), QueueName("a", "b_c")]
    cut = [QueueName(long, group) for group in ("first", "first-one", "second", "g" * 900, "g" * 901)]
    made = {dead_letter_topic(queue) for queue in same + cut}
    assert len(made) == len(same + cut)
    assert max(map(len, made)) == LONGEST_NAME


def test_a_topic_for_dead_letters_stays_the_same() -> None:
    """A later release must find what this one has written."""
    assert dead_letter_topic(QueueName("orders", "billing team")) == "dlq.orders.billing_team-a976b32928581f5e"
