"""Subscriptions by name and by regular expression: no one takes for ever."""

import random
import time
from uuid import UUID

import pytest
from tests.doors.kafka import Client, Door
from tests.unit.protocols.kafka.group_client import BAD_REGEX, BAD_REQUEST, OK, beat, run


def test_a_subscription_to_ten_thousand_topics() -> None:
    async def body(door: Door, client: Client) -> None:
        names = tuple(f"{number}".rjust(60, "x") for number in range(10_000))
        begun = time.process_time()
        joined = await beat(client, subscribed_topic_names=("t", *names[1:]))
        assert (joined["error_code"], joined["member_epoch"]) == (OK, 1)
        assert sum(len(topic["partitions"]) for topic in joined["assignment"]["topic_partitions"]) == 2
        assert time.process_time() - begun < 5
        assert (await beat(client, member_id="n", subscribed_topic_names=("t", *names)))["error_code"] == BAD_REQUEST

    run(body)


@pytest.mark.parametrize(
    "regex", ["(", "[a-", "a**", "\\", "(?=x)", r"(a)\1", "x" * 1025, "((a{100}){100}){100}", "(" * 1000, "a{1001}"]
)
def test_expressions_that_are_none(regex: str) -> None:
    async def body(door: Door, client: Client) -> None:
        begun = time.process_time()
        answer = await beat(client, subscribed_topic_names=None, subscribed_topic_regex=regex)
        assert answer["error_code"] == BAD_REGEX
        assert len(answer["error_message"]) <= 500
        assert time.process_time() - begun < 1

    run(body)


@pytest.mark.parametrize(
    "regex", ["(a+)+$", "(a|aa)+$", "(.*)*c", "([a-z]+)*x", "(a?){500}a{500}", "[ab]*a[ab]{100}c?"]
)
def test_an_expression_cannot_take_for_ever(regex: str) -> None:
    """A third of a second over 5,000 topics at most: all others wait for it."""
    rng = random.Random(1)

    async def body(door: Door, client: Client) -> None:
        names = tuple("a" * 200 + f"-{number}" for number in range(1000))
        names += tuple("".join(rng.choices("ab", k=240)) for _ in range(1000))
        view = door.engine.groups._view
        view._names, view._names_at = names, view.revision
        begun = time.process_time()
        answer = await beat(client, subscribed_topic_names=None, subscribed_topic_regex=regex)
        assert answer["error_code"] in (OK, BAD_REGEX)
        assert time.process_time() - begun < 0.15

    run(body)


def test_partitions_a_member_only_claims_to_have() -> None:
    async def body(door: Door, client: Client) -> None:
        await beat(client)
        claims = [{"topic_id": UUID(int=number + 1), "partitions": (-1, 1 << 30)} for number in range(6000)]
        answer = await beat(client, epoch=1, topic_partitions=claims)
        assert answer["error_code"] == OK
        assert (await beat(client, epoch=1, topic_partitions=()))["error_code"] == OK

    run(body)
