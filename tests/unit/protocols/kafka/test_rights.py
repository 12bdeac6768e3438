"""Every API asked by somebody with each single right, with each right but one, by prefix and by wildcard.

What they are told must be what Kafka's table of rights says, which is written here once more, without the code that it
judges; and who is refused has changed nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final

import pytest
from tests.doors.kafka import Door, with_door
from tests.unit.protocols.kafka.test_denied import CASES, codes_in, let_change, settle, state_of

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.ruleset import Ruleset

O: Final = Operation  # noqa: E741 - it stands in each line of a table
May = Callable[[Operation, Kind, str], bool]
Told = Callable[[May], int]
"""The code of what is refused; 0: nothing is."""
ALL_OF: Final[Mapping[Kind, tuple[Operation, ...]]] = {
    Kind.TOPIC: (
        *(O.READ, O.WRITE, O.CREATE, O.DELETE, O.ALTER, O.DESCRIBE),
        *(O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.ALL),
    ),
    Kind.GROUP: (O.READ, O.DELETE, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.ALL),
    Kind.CLUSTER: (
        *(O.CREATE, O.ALTER, O.DESCRIBE, O.CLUSTER_ACTION),
        *(O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.IDEMPOTENT_WRITE, O.ALL),
    ),
    Kind.TRANSACTIONAL_ID: (O.WRITE, O.DESCRIBE, O.TWO_PHASE_COMMIT, O.ALL),
}
NAMES: Final = {Kind.TOPIC: "t", Kind.GROUP: "g", Kind.CLUSTER: THE_CLUSTER.name, Kind.TRANSACTIONAL_ID: "x"}
CODES: Final = {Kind.TOPIC: 29, Kind.GROUP: 30, Kind.CLUSTER: 31, Kind.TRANSACTIONAL_ID: 53}


# --- who asks


def rule(operation: Operation, kind: Kind, name: str, *, prefix: bool = False, deny: bool = False) -> Rule:
    pattern, effect = Pattern.PREFIXED if prefix else Pattern.LITERAL, Effect.DENY if deny else Effect.ALLOW
    return Rule("User:ANONYMOUS", "*", operation, kind, pattern, name, effect)


def everything() -> list[Rule]:
    return [rule(O.ALL, kind, THE_CLUSTER.name if kind is Kind.CLUSTER else "*") for kind in ALL_OF]


def askers() -> dict[str, list[Rule]]:
    singles = [(operation, kind) for kind, operations in ALL_OF.items() for operation in operations]
    return {
        "nobody": [],
        "a bystander": [rule(O.ALL, kind, "other") for kind in ALL_OF if kind is not Kind.CLUSTER],
        **{f"{operation} {kind}": [rule(operation, kind, NAMES[kind])] for operation, kind in singles},
        **{
            f"not {operation} {kind}": [*everything(), rule(operation, kind, NAMES[kind], deny=True)]
            for operation, kind in singles
        },
        **{f"{operation} of any topic": [rule(operation, Kind.TOPIC, "*")] for operation in ALL_OF[Kind.TOPIC]},
        "all by prefix": [rule(O.ALL, kind, name, prefix=True) for kind, name in NAMES.items()],
        "unknown by prefix": [rule(O.ALL, Kind.TOPIC, "un", prefix=True)],
        "all but a prefix": [*everything(), rule(O.ALL, Kind.TOPIC, "un", prefix=True, deny=True)],
        "groups and topics": [rule(O.READ, kind, NAMES[kind]) for kind in (Kind.TOPIC, Kind.GROUP)],
        "transactions": [
            *(rule(O.WRITE, kind, NAMES[kind]) for kind in (Kind.TOPIC, Kind.TRANSACTIONAL_ID)),
            rule(O.READ, Kind.GROUP, "g"),
        ],
        "everybody": everything(),
    }


def judge(rules: Iterable[Rule]) -> May:
    """Kafka's decision, by looking at every rule."""
    implied = {
        O.DESCRIBE: {O.READ, O.WRITE, O.DELETE, O.ALTER},
        O.DESCRIBE_CONFIGS: {O.ALTER_CONFIGS},
    }

    def may(operation: Operation, kind: Kind, name: str) -> bool:
        about = [
            each
            for each in rules
            if each.kind is kind
            and (name.startswith(each.name) if each.pattern is Pattern.PREFIXED else each.name in (name, "*"))
        ]
        if any(each.effect is Effect.DENY and each.operation in (operation, O.ALL) for each in about):
            return False
        enough = {operation, O.ALL} | implied.get(operation, set())
        return any(each.effect is Effect.ALLOW and each.operation in enough for each in about)

    return may


# --- what they are told


def needs(*rights: tuple[Operation, Kind, str]) -> Told:
    """All of them, in this order."""
    return lambda may: next((CODES[right[1]] for right in rights if not may(*right)), 0)


def either(code: int, *rights: tuple[Operation, Kind, str]) -> Told:
    return lambda may: 0 if any(may(*right) for right in rights) else code


def both(*told: Told) -> Told:
    return lambda may: next((code for code in (each(may) for each in told) if code), 0)


def topic(operation: Operation, *names: str) -> Told:
    return needs(*((operation, Kind.TOPIC, name) for name in names or ("t",)))


def group(operation: Operation, *names: str) -> Told:
    return needs(*((operation, Kind.GROUP, name) for name in names or ("g",)))


def cluster(operation: Operation) -> Told:
    return needs((operation, Kind.CLUSTER, THE_CLUSTER.name))


def or_cluster(operation: Operation, *names: str) -> Told:
    whole = (operation, Kind.CLUSTER, THE_CLUSTER.name)
    return both(*(either(29, whole, (operation, Kind.TOPIC, name)) for name in names))


def writes_anything(may: May) -> int:
    """KIP-679; of the askers here those who may write to some topic may write to one of these."""
    return 0 if any(may(O.WRITE, Kind.TOPIC, name) for name in ("t", "unknown", "other", "any")) else 31


TXN: Final = needs((O.WRITE, Kind.TRANSACTIONAL_ID, "x"))
SEES_TXN: Final = needs((O.DESCRIBE, Kind.TRANSACTIONAL_ID, "x"))
TABLE: Final[Mapping[str, list[Told]]] = {
    "produce": [topic(O.WRITE), topic(O.WRITE, "unknown")],
    "fetch": [topic(O.READ), topic(O.READ, "unknown")],
    "list_offsets": [topic(O.DESCRIBE), topic(O.DESCRIBE, "unknown")],
    "metadata": [both(topic(O.DESCRIBE, "t", "unknown"), or_cluster(O.CREATE, "unknown")), topic(O.DESCRIBE)],
    "find_coordinator": [group(O.DESCRIBE), SEES_TXN],
    "create_topics": [or_cluster(O.CREATE, "t"), both(or_cluster(O.CREATE, "new"), topic(O.DESCRIBE_CONFIGS, "new"))],
    "delete_topics": [or_cluster(O.DELETE, "t", "unknown")],
    "init_producer_id": [lambda may: writes_anything(may) and cluster(O.IDEMPOTENT_WRITE)(may), TXN],
    "offset_for_leader_epoch": [topic(O.DESCRIBE)],  # in Kafka CLUSTER_ACTION is enough; brokers have another door
    "delete_records": [topic(O.DELETE)],
    "create_partitions": [topic(O.ALTER)],
    "describe_configs": [
        topic(O.DESCRIBE_CONFIGS),
        topic(O.DESCRIBE_CONFIGS, "unknown"),
        cluster(O.DESCRIBE_CONFIGS),
        group(O.DESCRIBE_CONFIGS),
    ],
    "alter_configs": [topic(O.ALTER_CONFIGS), group(O.ALTER_CONFIGS)],
    "incremental_alter_configs": [topic(O.ALTER_CONFIGS), cluster(O.ALTER_CONFIGS), group(O.ALTER_CONFIGS)],
    "list_config_resources": [cluster(O.DESCRIBE_CONFIGS)],
    "describe_topic_partitions": [topic(O.DESCRIBE, "t", "unknown"), topic(O.DESCRIBE)],
    "describe_log_dirs": [cluster(O.DESCRIBE)],
    "describe_producers": [topic(O.READ)],
    **{api: [group(O.READ)] for api in ("join_group", "sync_group", "heartbeat", "leave_group")},
    "consumer_group_heartbeat": [both(group(O.READ), topic(O.DESCRIBE))],
    "consumer_group_describe": [group(O.DESCRIBE)],
    "share_group_heartbeat": [both(group(O.READ), topic(O.DESCRIBE))],
    "share_group_describe": [group(O.DESCRIBE)],
    "describe_share_group_offsets": [both(group(O.DESCRIBE), topic(O.DESCRIBE)), group(O.DESCRIBE)],
    "alter_share_group_offsets": [group(O.READ)],  # the group is none of this kind, which is told before the topics are
    "delete_share_group_offsets": [group(O.DELETE)],
    **{api: [group(O.READ)] for api in ("share_fetch", "share_acknowledge")},
    "offset_commit": [both(group(O.READ), topic(O.READ))],
    "offset_fetch": [both(group(O.DESCRIBE), topic(O.DESCRIBE)), group(O.DESCRIBE)],
    "offset_delete": [both(group(O.DELETE), topic(O.READ))],
    "list_groups": [either(30, (O.DESCRIBE, Kind.CLUSTER, THE_CLUSTER.name), (O.DESCRIBE, Kind.GROUP, "g"))],
    "describe_groups": [group(O.DESCRIBE)],
    "delete_groups": [group(O.DELETE, "g", "unknown")],
    # The second is what brokers ask of each other; in Kafka CLUSTER_ACTION is enough for it.
    "add_partitions_to_txn": [both(TXN, topic(O.WRITE)), both(cluster(O.CLUSTER_ACTION), TXN, topic(O.WRITE))],
    "add_offsets_to_txn": [both(TXN, group(O.READ))],
    "end_txn": [TXN],
    "txn_offset_commit": [both(TXN, group(O.READ), topic(O.READ))],
    "write_txn_markers": [
        either(31, *((operation, Kind.CLUSTER, THE_CLUSTER.name) for operation in (O.CLUSTER_ACTION, O.ALTER)))
    ],
    "describe_transactions": [SEES_TXN],
    "list_transactions": [SEES_TXN],
    "elect_leaders": [cluster(O.ALTER)] * 2,
    **{api: [cluster(O.ALTER)] for api in ("alter_partition_reassignments", "unregister_broker")},
    **{api: [cluster(O.ALTER)] for api in ("create_acls", "delete_acls", "alter_user_scram_credentials")},
    **{api: [cluster(O.DESCRIBE)] for api in ("list_partition_reassignments", "describe_acls")},
    "describe_user_scram_credentials": [cluster(O.DESCRIBE)],
}
MANY: Final = ("metadata", "delete_topics", "delete_groups")
"""Of several things: what is allowed of them is done."""
MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "create_topics": {"validate_only": True},
    "describe_topic_partitions": {"response_partition_limit": 100},
}
SHOWN: Final = {"topics": "'t'", "groups": "'g'", "transaction_states": "'x'"}
_revisions = count(1)


def test_every_case_is_in_the_table() -> None:
    assert {api: len(told) for api, told in TABLE.items()} == {api: len(cases) for api, cases in CASES.items()}


@pytest.mark.parametrize(("api", "number"), [(api, number) for api in CASES for number in range(len(CASES[api]))])
def test_each_right_opens_what_it_is_for_and_nothing_else(api: str, number: int) -> None:
    case, told = CASES[api][number], TABLE[api][number]
    values = {**case.values, **MORE.get(api, {})}
    wrong: list[Any] = []

    async def body(door: Door) -> None:
        client, guard = await settle(door), door.context.guard
        assert guard is not None
        expected = {name: told(judge(rules)) for name, rules in askers().items()}
        assert {*expected.values()} > {0}, "some are refused and some are not"
        for name, rules in sorted(askers().items(), key=lambda each: not expected[each[0]]):  # changes come last
            await let_change(guard)  # a change may have taken that away
            before = state_of(door) if expected[name] and api not in MANY else None
            door.engine.access.policy = Ruleset(next(_revisions), rules)
            answer = await client.ask(api, case.version, **values)
            codes = {*codes_in(answer)} & {29, 30, 31, 53}
            if case.empty:
                if (SHOWN[case.empty] in str(answer[case.empty])) == bool(expected[name]) or codes:
                    wrong.append((name, expected[name], answer))
            elif codes != ({expected[name]} if expected[name] else set()):
                wrong.append((name, expected[name], answer))
            made = door.engine.topics.get("unknown")  # by who may
            if made is not None:
                await door.engine.delete_topic(made)
            if door.engine.topics.get("t") is None:
                await door.topic()  # whoever may see it is told that it is gone
            if before is not None and before != state_of(door):
                wrong.append((name, "changed something"))
        assert not wrong, wrong

    with_door(body)
