"""What each principal asks: every API of the Kafka door, in requests that change nothing, whoever may do what.

Where a request that is allowed would change something it is one that is refused for another reason, or that only
checks. What cannot be asked so is made again by `Question.undo`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from penstock.protocols.kafka.session import APIS
from tests.doors.kafka import batch_of, fetch_values

from .rules import MADE_AGAIN

TOPICS: Final = ("books", "books-old", "letters", "public", "shut", "buried")
"""That there are."""
ABSENT: Final = ("books-new", "letters-new")
GROUPS: Final = ("readers", "readers-old", "writers")
"""With offsets and without members."""
MODERN, CLASSIC, SHARED, NO_GROUP = "readers-modern", "readers-classic", "readers-shared", "readers-new"
TX: Final = "tx"
TRANSACTIONS: Final = (TX, "tx-open", "other-tx")
"""Each in the middle of a transaction in `books` and `letters`."""
DOOMED, AUTO = "books-doomed", "books-auto"
"""Topics that are made again when they were deleted, or deleted when they were made."""
_UNKNOWN_ID: Final = UUID(int=0xC0FFEE)
_NOBODY: Final = {"transactional_id": TX, "producer_id": 1 << 40, "producer_epoch": 0}
_STALE: Final = {"member_id": "nobody", "generation_id": 3}
_SETTING: Final = {"name": "retention.ms", "value": "86400000", "config_operation": 0}
_OF_GROUP: Final = {"name": "share.record.lock.duration.ms", "value": "20000", "config_operation": 0}
Values = Mapping[str, Any]


@dataclass(slots=True)
class World:
    """What is in a broker, as far as it has names of its own making.

    Attributes:
        ids: of topics; that of `DOOMED` changes.
        member_epoch: of the member of the consumer group.
        share_epoch: of the member of the share group.
    """

    ids: dict[str, UUID] = field(default_factory=dict)
    member_epoch: int = 0
    share_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    api: str
    version: int
    values: Callable[[World], Values]
    undo: str = ""
    """The topic to be put right when the answer has no error for it."""


def _said(values: Values) -> Callable[[World], Values]:
    return lambda world: values


def _question(
    api: str, version: int, values: Values | Callable[[World], Values], about: str = "", **more: Any
) -> Question:
    made = values if callable(values) else _said(values)
    return Question(f"{api} {version}{about and ' '}{about}", api, version, made, **more)


def _rows(name: str, topics: Sequence[str], row: Any, under: str = "name") -> list[Values]:
    return [{under: topic, name: [row]} for topic in topics]


def _produce(batch: bytes, topics: Sequence[str], **more: Any) -> Values:
    data = _rows("partition_data", topics, {"index": 0, "records": batch})
    return {"acks": -1, "timeout": 5000, "topic_data": data, **more}


def _by_id(world: World, names: Sequence[str], **more: Any) -> list[Values]:
    return [{"topic_id": world.ids.get(name, _UNKNOWN_ID), **more} for name in names]


def _shared(world: World, *names: str) -> list[Values]:
    """To be fetched by a share consumer."""
    return _by_id(world, names, partitions=[{"partition_index": 0, "acknowledgement_batches": ()}])


def _resources(*kinds: tuple[int, str], **more: Any) -> Values:
    rows = [{"resource_type": kind, "resource_name": name, **more} for kind, name in kinds]
    return {"resources": rows, "validate_only": True}


ASKED_TOPICS: Final = ("books", "books-old", "letters", "public", "books-new")
_OFFSETS: Final = _rows("partitions", ASKED_TOPICS, {"partition_index": 0, "committed_offset": 1})
_ASKED_OFFSETS: Final = [{"name": name, "partition_indexes": [0]} for name in ASKED_TOPICS]
_RULE_FILTER: Final = {
    "resource_type_filter": 2,
    "resource_name_filter": "last",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_NO_RULE: Final = {**_RULE_FILTER, "resource_name_filter": "no-rule-is-about-this"}
_JOIN: Final = {
    "group_id": "readers",
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "session_timeout": 1,
    "rebalance_timeout": 1,
}
_HEARTBEAT: Final = {"group_id": MODERN, "member_id": "nobody", "member_epoch": 3, "rebalance_timeout": -1}
_SHARED: Final = {"group_id": SHARED, "member_id": "AAAAAAAAAAAAAAAAAAAAAg"}
_SHARE: Final = {"group_id": SHARED, "member_id": "nobody", "member_epoch": 3}
_ADDED: Final = {f"v3_and_below_{name}": value for name, value in _NOBODY.items()}
_TRANSACTIONS: Final = [
    {**_NOBODY, "verify_only": False, "topics": [{"name": "books", "partitions": [0]}]},
]
_CLUSTER_THINGS: Final = ((4, "1"), (4, ""), (16, "metrics"))
"""Settings of a broker, of all of them, and of what clients are to measure."""
_TOPIC_THINGS: Final = tuple((2, name) for name in ("books", "letters", "books-new"))
_GROUP_THINGS: Final = ((32, "readers"), (32, "writers"))


def _shown(topics: Any, **more: Any) -> Values:
    wants = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    return {"topics": topics, "allow_auto_topic_creation": False, **wants, **more}


_CHOSEN: Final[Sequence[Question]] = (
    # --- records
    _question("produce", 9, _produce(batch_of(b"x"), ASKED_TOPICS)),
    _question("produce", 9, _produce(batch_of(b"x"), ("books", "letters"), acks=0), "unacknowledged"),
    _question(
        *("produce", 9),
        _produce(
            batch_of(b"x", producer_id=1 << 40, producer_epoch=0, base_sequence=0, transactional=True),
            ("books", "letters"),
            transactional_id=TX,
        ),
        "in a transaction",
    ),
    _question(
        *("produce", 13),
        lambda world: {
            "acks": -1,
            "timeout": 5000,
            "topic_data": _by_id(
                world, ("books", "letters", "-"), partition_data=[{"index": 0, "records": batch_of(b"x")}]
            ),
        },
    ),
    _question("fetch", 12, fetch_values({name: {0: 0} for name in ASKED_TOPICS}, min_bytes=0)),
    _question(
        "fetch",
        12,
        {**fetch_values({"books": {0: 0}, "letters": {0: 0}}, min_bytes=0), "replica_id": 1},
        "as a replica",
    ),
    _question(
        *("fetch", 13),
        lambda world: fetch_values(
            {world.ids.get(name, _UNKNOWN_ID): {0: 0} for name in ("books", "letters", "-")}, min_bytes=0
        ),
    ),
    _question("list_offsets", 7, {"replica_id": -1, "topics": _rows("partitions", ASKED_TOPICS, {"timestamp": -1})}),
    _question(
        "offset_for_leader_epoch",
        4,
        {"replica_id": -1, "topics": _rows("partitions", ASKED_TOPICS, {"partition": 0}, "topic")},
    ),
    _question(
        "delete_records",
        2,
        {"topics": _rows("partitions", ASKED_TOPICS, {"partition_index": 0, "offset": 0}), "timeout": 5000},
    ),
    _question("describe_producers", 0, {"topics": _ASKED_OFFSETS}),
    # --- topics
    _question("metadata", 9, _shown([{"name": name} for name in (*TOPICS, *ABSENT)])),
    _question("metadata", 9, _shown(None), "all"),
    _question("metadata", 0, {"topics": []}, "all"),
    _question("metadata", 12, lambda world: {"topics": _by_id(world, ("books", "letters", "-"), name=None)}, "by id"),
    _question("metadata", 9, _shown([{"name": AUTO}], allow_auto_topic_creation=True), "creates", undo=AUTO),
    _question("describe_cluster", 1, {"include_cluster_authorized_operations": True}),
    _question(
        "describe_topic_partitions",
        0,
        {"topics": [{"name": name} for name in (*TOPICS, *ABSENT)], "response_partition_limit": 100},
    ),
    _question("describe_topic_partitions", 0, {"topics": [], "response_partition_limit": 100}, "all"),
    _question(
        *("create_topics", 7),
        {
            "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (*ABSENT, "books")],
            "timeout": 5000,
            "validate_only": True,
        },
    ),
    _question("delete_topics", 5, {"topic_names": ABSENT, "timeout": 5000}),
    _question(
        "delete_topics",
        6,
        lambda world: {"topics": _by_id(world, (DOOMED, "-"), name=None), "timeout": 5000},
        "by id",
        undo=DOOMED,
    ),
    _question(
        *("create_partitions", 3),
        {"topics": [{"name": name, "count": 5} for name in ASKED_TOPICS], "timeout": 5000, "validate_only": True},
    ),
    # --- settings
    _question("describe_configs", 4, _resources(*_TOPIC_THINGS)),
    _question("describe_configs", 4, _resources(*_CLUSTER_THINGS), "of brokers"),
    _question("describe_configs", 4, _resources((8, "1")), "of loggers"),
    _question("describe_configs", 4, _resources(*_GROUP_THINGS), "of groups"),
    _question("alter_configs", 2, _resources(*_TOPIC_THINGS, configs=[_SETTING])),
    _question("alter_configs", 2, _resources((4, "1"), configs=[]), "of brokers"),
    _question("incremental_alter_configs", 1, _resources(*_TOPIC_THINGS, configs=[_SETTING])),
    _question("incremental_alter_configs", 1, _resources((4, "1"), configs=[]), "of brokers"),
    _question("alter_configs", 2, _resources(*_GROUP_THINGS, configs=[_OF_GROUP]), "of groups"),
    _question("incremental_alter_configs", 1, _resources(*_GROUP_THINGS, configs=[_OF_GROUP]), "of groups"),
    _question("list_config_resources", 0, {}),
    _question("list_config_resources", 1, {"resource_types": [2]}, "topics"),
    _question("list_config_resources", 1, {"resource_types": [32]}, "groups"),
    _question("describe_log_dirs", 4, {"topics": None}),
    _question(
        "describe_log_dirs", 4, {"topics": [{"topic": name, "partitions": [0]} for name in ASKED_TOPICS]}, "named"
    ),
    # --- groups
    _question("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [*GROUPS, NO_GROUP]}),
    _question("find_coordinator", 3, {"key_type": 0, "key": "readers"}),
    _question("find_coordinator", 4, {"key_type": 1, "coordinator_keys": TRANSACTIONS}, "of transactions"),
    _question("join_group", 7, _JOIN),
    _question(
        "sync_group", 5, {"group_id": "readers", **_STALE, "protocol_type": "consumer", "protocol_name": "range"}
    ),
    _question("heartbeat", 4, {"group_id": "readers", **_STALE}),
    _question("leave_group", 5, {"group_id": "readers", "members": [{"member_id": "nobody"}]}),
    _question("consumer_group_heartbeat", 1, {**_HEARTBEAT, "subscribed_topic_names": ("books",)}, "one topic"),
    _question(
        "consumer_group_heartbeat", 1, {**_HEARTBEAT, "subscribed_topic_names": ("books", "letters")}, "two topics"
    ),
    _question("consumer_group_heartbeat", 1, {**_HEARTBEAT, "subscribed_topic_regex": "b.*"}, "by expression"),
    _question("consumer_group_describe", 1, {"group_ids": [MODERN, "writers"], "include_authorized_operations": True}),
    _question("share_group_heartbeat", 1, {**_SHARE, "subscribed_topic_names": ("books",)}, "one topic"),
    _question("share_group_heartbeat", 1, {**_SHARE, "subscribed_topic_names": ("books", "letters")}, "two topics"),
    _question("share_group_describe", 1, {"group_ids": [SHARED, "writers"], "include_authorized_operations": True}),
    _question(
        *("describe_share_group_offsets", 1),
        {
            "groups": [
                {"group_id": name, "topics": _rows("partitions", ASKED_TOPICS, 0, "topic_name")}
                for name in (SHARED, "writers")
            ]
        },
    ),
    _question(
        *("describe_share_group_offsets", 1),
        {"groups": [{"group_id": name, "topics": None} for name in (SHARED, "writers")]},
        "all",
    ),
    _question(
        *("alter_share_group_offsets", 0),
        {
            "group_id": NO_GROUP,
            "topics": _rows("partitions", ABSENT, {"partition_index": 0, "start_offset": 1}, "topic_name"),
        },
    ),
    _question(
        *("alter_share_group_offsets", 0),
        {
            "group_id": SHARED,
            "topics": _rows("partitions", ("books",), {"partition_index": 0, "start_offset": 1}, "topic_name"),
        },
        "with members",
    ),
    _question(
        *("delete_share_group_offsets", 0),
        {"group_id": SHARED, "topics": [{"topic_name": name} for name in ("books", "letters")]},
        "with members",
    ),
    _question(
        *("delete_share_group_offsets", 0),
        {"group_id": NO_GROUP, "topics": [{"topic_name": name} for name in ASKED_TOPICS]},
    ),
    _question("share_fetch", 2, {**_SHARED, "share_session_epoch": 7}, "no session"),
    _question(
        *("share_fetch", 2),
        lambda world: {**_SHARED, "share_session_epoch": 0, "topics": _shared(world, "books", "letters")},
        "no records",
    ),
    _question("share_acknowledge", 2, {**_SHARED, "share_session_epoch": 7}),
    _question("describe_groups", 5, {"groups": [CLASSIC, "writers", NO_GROUP], "include_authorized_operations": True}),
    _question("list_groups", 4, {"states_filter": []}),
    _question("delete_groups", 2, {"groups_names": [CLASSIC, NO_GROUP, "writers-new"]}),
    _question(
        "offset_commit",
        8,
        {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": "", "topics": _OFFSETS},
    ),
    _question(
        *("offset_commit", 10),
        lambda world: {
            "group_id": "readers",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": _by_id(
                world, ("books", "letters", "-"), partitions=[{"partition_index": 0, "committed_offset": 1}]
            ),
        },
    ),
    _question("offset_fetch", 1, {"group_id": "readers", "topics": _ASKED_OFFSETS}),
    _question("offset_fetch", 7, {"group_id": "readers", "topics": _ASKED_OFFSETS}),
    _question(
        "offset_fetch", 8, {"groups": [{"group_id": name, "topics": _ASKED_OFFSETS} for name in ("readers", "writers")]}
    ),
    _question("offset_fetch", 8, {"groups": [{"group_id": name, "topics": None} for name in GROUPS]}, "all"),
    _question(
        *("offset_fetch", 10),
        lambda world: {
            "groups": [
                {"group_id": "readers", "topics": _by_id(world, ("books", "letters", "-"), partition_indexes=[0])}
            ]
        },
    ),
    _question(
        "offset_delete",
        0,
        {"group_id": "readers", "topics": _rows("partitions", ASKED_TOPICS, {"partition_index": 99})},
    ),
    # --- transactions
    _question(
        "init_producer_id",
        4,
        {"transactional_id": None, "transaction_timeout": 5000, "producer_id": -1, "producer_epoch": -1},
    ),
    _question(
        *("init_producer_id", 4),
        {"transactional_id": TX, "transaction_timeout": 1 << 30, "producer_id": -1, "producer_epoch": -1},
        "in transactions",
    ),
    _question(
        "add_partitions_to_txn",
        3,
        {**_ADDED, "v3_and_below_topics": [{"name": "books", "partitions": [0]}]},
        "one topic",
    ),
    _question(
        *("add_partitions_to_txn", 3),
        {
            **_ADDED,
            "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in ("books", "letters", "books-new")],
        },
        "three topics",
    ),
    _question("add_partitions_to_txn", 4, {"transactions": _TRANSACTIONS}, "between brokers"),
    _question("add_offsets_to_txn", 3, {**_NOBODY, "group_id": "readers"}),
    _question("end_txn", 3, {**_NOBODY, "committed": True}),
    _question("txn_offset_commit", 3, {**_NOBODY, **_STALE, "group_id": "readers", "topics": _OFFSETS}),
    _question(
        *("write_txn_markers", 1),
        {
            "markers": [
                {
                    "producer_id": 1 << 40,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": "no-such-topic", "partition_indexes": [0]}],
                }
            ]
        },
    ),
    _question("describe_transactions", 0, {"transactional_ids": [*TRANSACTIONS, "tx-new"]}),
    _question("list_transactions", 0, {"state_filters": [], "producer_id_filters": []}),
    # --- the cluster
    _question("elect_leaders", 0, {"topic_partitions": [{"topic": "books", "partitions": [0]}], "timeout": 5000}),
    _question(
        "elect_leaders",
        2,
        {"election_type": 0, "topic_partitions": [{"topic": "books", "partitions": [0]}], "timeout": 5000},
    ),
    _question(
        *("alter_partition_reassignments", 0),
        {"timeout": 5000, "topics": [{"name": "books", "partitions": [{"partition_index": 0, "replicas": None}]}]},
    ),
    _question("list_partition_reassignments", 0, {"timeout": 5000, "topics": None}),
    _question("unregister_broker", 0, {"broker_id": 77}),
    # --- users and rules
    _question("describe_acls", 3, _RULE_FILTER),
    _question("create_acls", 3, {"creations": [MADE_AGAIN.creation()]}),
    _question("delete_acls", 3, {"filters": [_NO_RULE]}),
    _question("describe_user_scram_credentials", 0, {"users": [{"name": "no-such-user"}]}),
    _question(
        "alter_user_scram_credentials", 0, {"deletions": [{"name": "no-such-user", "mechanism": 1}], "upsertions": []}
    ),
)


def _more_versions() -> Iterator[Question]:
    """The same in the oldest and the newest version served, where no question has it: fields of refusals came with
    later ones."""
    asked = {(question.api, question.version) for question in _CHOSEN}
    for api in APIS:
        same = [each for each in _CHOSEN if each.api == api.name and not each.undo]
        for version, alike in ((api.oldest, min), (api.newest, max)):
            if same and (api.name, version) not in asked:
                asked.add((api.name, version))
                like = alike(same, key=lambda each: each.version)
                yield Question(f"{api.name} {version}", api.name, version, like.values)


QUESTIONS: Final[Sequence[Question]] = (*_CHOSEN, *_more_versions())
UNASKED: Final = frozenset({"api_versions", "sasl_handshake", "sasl_authenticate"})
"""What comes before anybody is somebody."""
ASKED: Final = frozenset(api.name for api in APIS) - UNASKED
