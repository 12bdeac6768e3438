"""Which rules are in force: a queue's own, what is set for a share group, or those of dead letters."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import cast

from penstock.engine.groups.group_config import GroupConfig, make_group_config
from penstock.engine.queues.rulebook import _MOST_KEPT, DEAD_LETTER_RULES, Rulebook
from penstock.engine.queues.settings import SHARE_RULES
from penstock.engine.topics import Topics

NOTHING: Mapping[str, str] = MappingProxyType({})


class Told:
    """What is set for groups."""

    def __init__(self) -> None:
        self.given: dict[str, Mapping[str, str]] = {}

    def of(self, group: str) -> GroupConfig:
        return make_group_config(self.given.get(group, NOTHING), NOTHING)


def rulebook(told: Told, **topics: object) -> Rulebook:
    return Rulebook(cast(Topics, topics), told.of)


def topic(queues: Mapping[str, Mapping[str, str]] = NOTHING, *, dead: bool = False) -> SimpleNamespace:  # type: ignore
    return SimpleNamespace(queues=queues, config=SimpleNamespace(written_by_broker=dead))


def test_a_share_group_goes_by_what_is_set_for_it() -> None:
    told = Told()
    rules = rulebook(told, t=topic())
    assert rules.rules("t", "g") == SHARE_RULES
    told.given["g"] = {
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "7",
        "share.partition.max.record.locks": "300",
        "errors.deadletterqueue.topic.name": "dlq.g",
    }
    changed = SHARE_RULES._replace(
        visibility_ms=20_000, limit=7, max_unacked=300, max_unacked_consumer=300, dead_letter="dlq.g"
    )
    assert rules.rules("t", "g") == changed
    assert rules.rules("t", "other") == SHARE_RULES
    told.given["g"] = {"errors.deadletterqueue.topic.name": ""}
    assert rules.rules("t", "g").dead_letter is None


def test_a_queue_goes_by_its_own() -> None:
    told = Told()
    told.given["g"] = {"share.delivery.count.limit": "7"}
    rules = rulebook(told, t=topic({"g": {"max-attempts": "9"}}))
    assert rules.rules("t", "g").limit == 9 and rules.rules("t", "other").limit == 5


def test_dead_letters_can_be_tried_for_ever() -> None:
    told = Told()
    told.given["g"] = {"share.delivery.count.limit": "7"}
    assert rulebook(told, dead=topic(dead=True)).rules("dead", "g") is DEAD_LETTER_RULES


def test_what_is_remembered_is_bounded() -> None:
    told = Told()
    rules = rulebook(told, t=topic())
    for number in range(2 * _MOST_KEPT):
        told.given["g"] = {"errors.deadletterqueue.topic.name": f"dlq.{number}"}
        assert rules.rules("t", "g").dead_letter == f"dlq.{number}"
    assert len(rules._shared) <= _MOST_KEPT
