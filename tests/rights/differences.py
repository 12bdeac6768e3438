"""Where Penstock answers otherwise than Apache Kafka on purpose; docs/kafka.md has the same list for users.

None of them lets anybody do or see more. Each makes of what Kafka answers what Penstock does, for one question; it may
look at what Kafka answers the same principal to others.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

Answers = Mapping[str, str]
"""What one principal is answered, by the names of the questions."""


def expected(name: str, answers: Answers) -> str:
    """What Penstock has to answer to one question, where Kafka answers all of these."""
    said = answers[name]
    difference = DIFFERENCES.get(name)
    return said if difference is None else difference[1](said, answers)


def _instead(kafka: str, penstock: str) -> Callable[[str, Answers], str]:
    return lambda said, _: re.sub(kafka, penstock, said)


def _seen(answers: Answers) -> set[str]:
    """Topics that may be described."""
    return set(re.findall(r"\b0 (\S+) \[", answers["metadata 9 all"]))


def _only_seen(said: str, answers: Answers) -> str:
    """A list of topics without those that may not be described, perhaps of a directory."""
    head = re.match(r"(0 )?(\[0 )?\[", said)
    if head is None:
        return said
    seen = _seen(answers)
    inner = said[head.end() :].removesuffix("]]" if head[2] else "]")
    rows = [row for row in re.split(r", (?=[^\d\]])", inner) if row.split(" ")[0] in seen]
    listed = f"[{', '.join(rows)}]" if rows else ""
    if head[2]:
        listed = f"[0 {listed}]" if listed else "[0]"
    return f"{head[1] or ''}{listed}".strip()


def _only_seen_groups(said: str, answers: Answers) -> str:
    """A list of groups without those that may not be described."""
    if not said.startswith("0 ["):
        return said
    seen = set(re.findall(r"([\w-]+) 0\b", answers["find_coordinator 4"]))
    rows = [row for row in said.removeprefix("0 [").removesuffix("]").split(", ") if row in seen]
    return f"0 [{', '.join(rows)}]" if rows else "0"


def _as_a_client(said: str, answers: Answers) -> str:
    """Who may do what brokers do is asked for the rights of a client all the same."""
    if not said.startswith("0 "):
        return said
    code = re.search(r"\d+(?=\]\])", answers["add_partitions_to_txn 3 one topic"])
    assert code is not None
    return re.sub(r"49", code[0], said)


def _as_no_replica(said: str, answers: Answers) -> str:
    hidden = re.findall(r"29 ([\w-]+)", answers["metadata 9"])
    if not hidden:
        return said
    return re.sub(rf"\b({'|'.join(hidden)}) \[\d+ [^]]*\]", r"\1 [29 0]", said)


_REPLICA: Final = "a client is no replica"
_ALONE: Final = "a broker of its own has no other to elect, move to or forget"
_STARTS: Final = "a broker of its own reads its settings when it starts"
_TOPICS: Final = "topics that may not be described are not listed, whatever may be done to the cluster"
DIFFERENCES: Final[Mapping[str, tuple[str, Callable[[str, Answers], str]]]] = {
    "fetch 12 as a replica": (_REPLICA, _instead(r"\b0 6\b", "0 29")),
    "offset_for_leader_epoch 4": (_REPLICA, _as_no_replica),
    "offset_for_leader_epoch 2": (_REPLICA, _as_no_replica),
    "add_partitions_to_txn 4 between brokers": ("a client is no broker", _as_a_client),
    "add_partitions_to_txn 5": ("a client is no broker", _as_a_client),
    "list_config_resources 1 topics": (_TOPICS, _only_seen),
    "list_config_resources 1 groups": (
        "groups that may not be described are not listed, whatever may be done to the cluster",
        _only_seen_groups,
    ),
    "describe_log_dirs 1": (_TOPICS, _only_seen),
    "describe_log_dirs 4": (_TOPICS, _only_seen),
    "describe_log_dirs 5": (_TOPICS, _only_seen),
    "describe_log_dirs 4 named": (_TOPICS, _only_seen),
    "describe_configs 4 of loggers": ("loggers have no settings", _instead(r"^\[0 1\]", "[42 1]")),
    "alter_configs 2 of brokers": (_STARTS, _instead(r"^\[0 1\]", "[42 1]")),
    "incremental_alter_configs 1 of brokers": (_STARTS, _instead(r"^\[0 1\]", "[42 1]")),
    "offset_delete 0": ("offsets of partitions that are gone can be deleted", _instead(r"\b99 3\b", "99 0")),
    "elect_leaders 0": (_ALONE, _instead(r"\b84\b", "42")),
    "elect_leaders 2": (_ALONE, _instead(r"\b84\b", "42")),
    "alter_partition_reassignments 1": (_ALONE, _instead(r"\b85\b", "42")),
    "alter_partition_reassignments 0": (_ALONE, _instead(r"\b85\b", "42")),
    "unregister_broker 0": (_ALONE, _instead(r"^102$", "42")),
    "describe_user_scram_credentials 0": ("a refusal is told once, without rows", _instead(r"^31 \[31\]$", "31")),
}
