"""Verbs about queues as wholes: what there are, what they go by, how many messages are in them.

Any broker makes, lists, changes and deletes queues. What is in them is known to whoever leads a partition: each broker
tells of those that it leads.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.engine.access import Kind, Operation, Resource
from penstock.engine.partition import Partition
from penstock.engine.queues.headers import LANES
from penstock.engine.queues.names import DEAD_LETTERS, QueueName, parse_queue_name
from penstock.engine.queues.settings import QUEUE_RULES, SETTINGS, format_rules, parse_rules
from penstock.engine.queues.targets import target_of
from penstock.engine.topics import MAX_TOPIC_PARTITIONS, Topic
from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean
from penstock.protocols.kafka.verbs.document import Document
from penstock.protocols.kafka.verbs.users import page
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb

_MAX_REPLICAS: Final = 1000
_MAX_UNSET: Final = 100
_EITHER: Final = (frozenset({"max-attempts", "max-deliveries"}),)
"""Settings of which each takes the other's place."""
_LONGEST_NAME: Final = 60


def read_name(document: Document) -> QueueName:
    return parse_queue_name(document.text("queue"))


def group_and_topic(document: Document) -> Sequence[Resource]:
    """What a right is taken to for whatever is done to a queue."""
    name = read_name(document)
    return Resource(Kind.GROUP, name.group), Resource(Kind.TOPIC, name.topic)


def _nothing(document: Document) -> Sequence[Resource]:
    return ()


def find_topic(asked: Asked, name: QueueName, operation: Operation) -> Topic:
    """The topic of a queue that is there, as far as this broker can tell. Raises PenstockError."""
    topic = asked.caller.acting.topics.get(name.topic, operation)
    if topic is None or not asked.caller.acting.queues.may_be(topic, name.group):
        raise unknown(name)
    return topic


def unknown(name: QueueName) -> PenstockError:
    return PenstockError(
        Code.UNKNOWN_QUEUE,
        f"there is no queue {str(name)!r}",
        help=f"'penstock queue create {name}' makes it, 'penstock queue list' shows what there is",
    )


def read_partition(asked: Asked, name: QueueName, operation: Operation) -> Partition:
    index = asked.document.number("partition", 0, MAX_TOPIC_PARTITIONS)
    return asked.caller.acting.topics.partition(name.topic, index, operation)


def led_here(asked: Asked, topic: Topic) -> Iterator[Partition]:
    return (each for each in topic.partitions if each.state.leader == asked.context.node_id)


# --- what there are


async def create_queue(asked: Asked) -> Answer:
    """With its topic, if that is not there."""
    document, acting, name = asked.document, asked.caller.acting, read_name(asked.document)
    given = {key: text.strip() for key, text in document.pairs("settings").items()}
    partitions = document.maybe("partitions", 1, MAX_TOPIC_PARTITIONS)
    replication = document.maybe("replication", 1, _MAX_REPLICAS)
    parse_rules(given, QUEUE_RULES)
    topic = acting.topics.get(name.topic, Operation.ALTER_CONFIGS)
    is_new = topic is None
    if topic is None and name.topic.startswith(DEAD_LETTERS):
        raise PenstockError(
            Code.INVALID_QUEUE,
            f"topic {name.topic!r} is not there: brokers make topics of dead letters themselves, with the first letter",
            help="wait for that letter, or give the queue another name",
        )
    if topic is None:
        topic = await acting.topics.create(
            name.topic, -1 if partitions is None else partitions, replication=-1 if replication is None else replication
        )
    elif partitions not in (None, len(topic.partitions)):
        raise PenstockError(
            Code.INVALID_PARTITIONS,
            f"topic {name.topic!r} is there already, with {len(topic.partitions)} partitions and not {partitions}",
            help=f"leave the number out; 'penstock topic alter {name.topic} --partitions N' adds some",
        )

    def made(before: Mapping[str, str] | None) -> Mapping[str, str]:
        if before is not None:
            raise PenstockError(Code.EXISTS, f"queue {str(name)!r} is there already")
        return given

    await acting.queues.alter(topic, name.group, made)
    return {
        "queue": str(name),
        "topic": name.topic,
        "group": name.group,
        "made_topic": is_new,
        "partitions": len(topic.partitions),
    }


async def list_queues(asked: Asked) -> Answer:
    """Those that may be described, of the topics that may be. What share clients made is a group, and in their list."""
    may = asked.caller.acting.rights.may
    await asked.context.turns.next()
    found = {
        str(QueueName(topic.name, group)): (topic, group)
        for topic in asked.caller.acting.topics.visible()
        for group in topic.queues
        if may(Operation.DESCRIBE, Kind.GROUP, group)
    }
    names, is_more = page(asked, found)
    rows = []
    for name in names:
        topic, group = found[name]
        rows.append(
            {
                "queue": name,
                "topic": topic.name,
                "group": group,
                "made_by": "queue",
                "partitions": len(topic.partitions),
                "settings": dict(topic.queues[group]),
            }
        )
    return {"rows": rows, "more": is_more}


async def delete_queue(asked: Asked) -> Answer:
    """That there is one; the topic and its records stay. What has become of messages, leaders forget when asked to."""
    name = read_name(asked.document)
    topic = find_topic(asked, name, Operation.DELETE)

    def gone(before: Mapping[str, str] | None) -> None:
        if before is None:
            raise unknown(name)

    await asked.caller.acting.queues.alter(topic, name.group, gone, Operation.DELETE)
    return {"queue": str(name)}


async def forget_queue(asked: Asked) -> Answer:
    """What has become of the messages of a partition, for a queue that is deleted: one of its name begins anew."""
    name = read_name(asked.document)
    find_topic(asked, name, Operation.DELETE)
    partition = read_partition(asked, name, Operation.DELETE)
    try:
        await asked.caller.acting.queues.delete(partition, name.group)
    except PenstockError as error:
        if error.code is not Code.UNKNOWN_QUEUE:
            raise
    return {"partition": partition.index}


# --- what they go by


async def alter_queue(asked: Asked) -> Answer:
    """The changed settings are checked together with those that stay."""
    document, name = asked.document, read_name(asked.document)
    given = {key: text.strip() for key, text in document.pairs("settings").items()}
    unset = document.texts("unset", _MAX_UNSET)
    for key in unset:
        if key not in SETTINGS:
            hint = did_you_mean(key, SETTINGS, f"there are {', '.join(SETTINGS)}")
            raise PenstockError(Code.INVALID_CONFIG, f"queue setting {key[:_LONGEST_NAME]!r} is unknown; {hint}")
    rivals = {rival for pair in _EITHER for key in given if key in pair for rival in pair - {key}}
    topic = find_topic(asked, name, Operation.ALTER_CONFIGS)
    before = after = QUEUE_RULES

    def altered(stored: Mapping[str, str] | None) -> Mapping[str, str]:
        nonlocal before, after
        if stored is None:
            raise unknown(name)
        kept = {key: text for key, text in stored.items() if key not in unset and key not in rivals}
        before, after = parse_rules(stored, QUEUE_RULES), parse_rules({**kept, **given}, QUEUE_RULES)
        return {**kept, **given}

    await asked.caller.acting.queues.alter(topic, name.group, altered)
    old, new = format_rules(before), format_rules(after)
    changed = [key for key in SETTINGS if key in given or key in unset or old.get(key) != new.get(key)]
    return {
        "queue": str(name),
        "changes": [{"name": key, "old": old.get(key), "new": new.get(key)} for key in changed],
    }


# --- what is in them


async def describe_queue(asked: Asked) -> Answer:
    """Settings in force, and the figures of the partitions that this broker leads."""
    name = read_name(asked.document)
    topic = find_topic(asked, name, Operation.DESCRIBE)
    rules = asked.caller.acting.queues.rules(name.topic, name.group)
    rows = [await _figures(asked, name, partition) for partition in led_here(asked, topic)]
    own = topic.queues.get(name.group)
    if own is None and len(rows) == len(topic.partitions) and not any("ready" in row for row in rows):
        raise unknown(name)  # others, where they lead some, may know of it
    return {
        "queue": str(name),
        "topic": name.topic,
        "group": name.group,
        "made_by": "share" if own is None else "queue",
        "dead_letter_topic": target_of(name, rules),
        "settings": [
            {"name": key, "value": text, "own": key in (own or {})} for key, text in format_rules(rules).items()
        ],
        "partitions": rows,
    }


async def _figures(asked: Asked, name: QueueName, partition: Partition) -> Answer:
    """Without any where the group has not come to that partition yet."""
    await asked.context.turns.next()
    row = {"partition": partition.index, "leader": asked.context.node_id}
    try:
        figures = await asked.caller.acting.queues.figures(partition, name.group)
        holding = await asked.caller.acting.queues.holding(partition, name.group)
        standing = await asked.caller.acting.queues.standing(partition, name.group)
    except PenstockError as error:
        if error.code is Code.UNKNOWN_QUEUE:
            return row
        raise
    return {
        **row,
        "start": figures.start,
        "next": figures.next,
        "ready": figures.ready,
        "leased": figures.leased,
        **({"in_transactions": figures.in_transactions} if figures.in_transactions else {}),
        "delayed": figures.delayed,
        "dying": figures.dying,
        "oldest_ms": holding.oldest_ms,
        "held_bytes": holding.held_bytes,
        "not_due": standing.not_due,
        "held": standing.held,
        "tenants": standing.tenants,
        "unseen": standing.unseen,
        "lanes": [{"lane": lane, **each._asdict()} for lane, each in zip(LANES, standing.lanes, strict=False)],
    }


VERBS: Final[tuple[Verb, ...]] = (
    Verb(
        "queue.create",
        Operation.ALTER_CONFIGS,
        create_queue,
        frozenset({"queue", "settings", "partitions", "replication"}),
        group_and_topic,
    ),
    Verb("queue.list", Operation.DESCRIBE, list_queues, frozenset({"after", "limit"}), _nothing),
    Verb("queue.describe", Operation.DESCRIBE, describe_queue, frozenset({"queue"}), group_and_topic),
    Verb(
        "queue.alter",
        Operation.ALTER_CONFIGS,
        alter_queue,
        frozenset({"queue", "settings", "unset"}),
        group_and_topic,
    ),
    Verb("queue.delete", Operation.DELETE, delete_queue, frozenset({"queue"}), group_and_topic),
    Verb("queue.forget", Operation.DELETE, forget_queue, frozenset({"queue", "partition"}), group_and_topic),
)
