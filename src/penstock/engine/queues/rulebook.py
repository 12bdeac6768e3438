"""Which rules are in force for which queue: those the topic's record keeps, or those of share groups."""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from penstock.engine.groups.group_config import GroupConfig
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.settings import QUEUE_RULES, SHARE_RULES, QueueRules, parse_rules
from penstock.engine.queues.targets import target_of
from penstock.engine.queues.window import MOST_COUNTED
from penstock.engine.topics import Topics
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger

log_ = get_logger("queues")
_MOST_KEPT: Final = 1000
Given = Mapping[str, str]
DEAD_LETTER_RULES = QUEUE_RULES._replace(limit=MOST_COUNTED + 1, durable=False, dead_letter=None)
"""Of who reads dead letters: they can be tried for ever, and what is rejected there is dropped."""


class _Read(NamedTuple):
    """A topic's queues, as they were when their rules were made of them."""

    given: Mapping[str, Given]
    rules: Mapping[str, QueueRules]
    durable: Collection[str]
    limited: Mapping[str, QueueRules]
    sorting: Mapping[str, object]


class Rulebook:
    """Of one broker.

    Args:
        config_of: what is set for a group, under Kafka's names: it is what share groups go by.
    """

    def __init__(self, topics: Topics, config_of: Callable[[str], GroupConfig]) -> None:
        self._topics = topics
        self._config_of = config_of
        self._read: dict[str, _Read] = {}
        self._shared: dict[GroupConfig, QueueRules] = {}
        """The rules of share groups, by what is set for them."""

    def rules(self, topic: str, group: str) -> QueueRules:
        rules = self._of(topic).rules.get(group)
        if rules is not None:
            return rules
        found = self._topics.get(topic)
        if found is not None and found.config.written_by_broker:
            return DEAD_LETTER_RULES
        config = self._config_of(group)
        rules = self._shared.get(config)
        if rules is None:
            if len(self._shared) >= _MOST_KEPT:
                self._shared.clear()
            rules = self._shared[config] = _rules_of_share_group(config)
        return rules

    def copies_dead_letters(self, topic: str, group: str) -> bool:
        """Whether dead letters have all of their messages: a setting of Kafka's, of share groups alone."""
        return self.is_known(topic, group) or self._config_of(group).copies_dead_letters

    def known(self, topic: str) -> Collection[str]:
        """The groups that were made queues of it."""
        return self._of(topic).rules.keys()

    def durable(self, topic: str) -> Collection[str]:
        """The queues whose messages must stay until they are settled."""
        return self._of(topic).durable

    def limited(self, topic: str) -> Mapping[str, QueueRules]:
        """The queues that may hold so much and no more."""
        return self._of(topic).limited

    def all_of(self, topic: str) -> Mapping[str, QueueRules]:
        """Of each group that was made a queue of it."""
        return self._of(topic).rules

    def sorting_of(self, topic: str) -> Mapping[str, object]:
        """What of its queues' rules says in which order messages are given out."""
        return self._of(topic).sorting

    def window_of(self, topic: str) -> int | None:
        """For how long duplicates of its messages are dropped, in milliseconds: as the topic's own queue has it."""
        rules = self._of(topic).rules.get(topic)
        return None if rules is None else rules.dedup_ms

    def targets(self, topic: str) -> Collection[str]:
        """Where the dead letters of its queues go."""
        found = [target_of(QueueName(topic, group), rules) for group, rules in self._of(topic).rules.items()]
        return [target for target in found if target is not None]

    def is_known(self, topic: str, group: str) -> bool:
        """Whether it was made as a queue."""
        return group in self._of(topic).rules

    def _of(self, name: str) -> _Read:
        topic = self._topics.get(name)
        given: Mapping[str, Given] = {} if topic is None else topic.queues
        read = self._read.get(name)
        if read is None or read.given is not given:
            rules = {group: _read_rules(name, group, settings) for group, settings in given.items()}
            durable = tuple(group for group, each in rules.items() if each.durable)
            read = _Read(given, rules, durable, _limited(rules), _sorting(rules))
            if topic is not None:
                self._read[name] = read
        return read


def _rules_of_share_group(config: GroupConfig) -> QueueRules:
    return SHARE_RULES._replace(
        visibility_ms=config.record_lock_ms,
        limit=config.delivery_limit,
        max_unacked=config.max_record_locks,
        max_unacked_consumer=config.max_record_locks,
        dead_letter=config.dead_letter_topic,
    )


def _limited(rules: Mapping[str, QueueRules]) -> dict[str, QueueRules]:
    return {group: each for group, each in rules.items() if each.max_messages is not None or each.max_bytes is not None}


def _sorting(rules: Mapping[str, QueueRules]) -> dict[str, object]:
    return {group: (each.is_fifo, each.lanes, each.tenant_weights, each.delay_ms) for group, each in rules.items()}


def _read_rules(topic: str, group: str, settings: Given) -> QueueRules:
    try:
        return parse_rules(settings, QUEUE_RULES)
    except PenstockError as error:  # of a later release, perhaps; nothing is lost by the defaults
        log_.limited("rules").error("queue settings cannot be read", topic=topic, group=group, error=str(error))
        return QUEUE_RULES
