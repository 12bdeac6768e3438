"""Kafka's own commands about groups and transactions with their users' arguments, all in one JVM."""

import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.peers.broker import Broker

from .clients.groups import READ_COMMITTED, Committed, wait_until
from .clients.java_groups import JavaGroupAdmin
from .clients.members_groups import Members, places_of, settle
from .clients.producers_transactions import Producers
from .conftest import Judges, fresh_name, run_tool
from .records import Record
from .wire import Wire

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
Tool = Callable[..., str]


@pytest.fixture
def tool(broker: Broker, judges: Judges) -> Tool:
    """Runs a tool against the broker and hands out what it printed."""

    def run(name: str, *arguments: str) -> str:
        return run_tool(judges, name, "--bootstrap-server", broker.bootstrap, *arguments)

    return run


@pytest.fixture
def producers(broker: Broker, judges: Judges) -> Iterator[Producers]:
    with Producers("java", broker.bootstrap, judges) as made:
        yield made


@pytest.fixture
def filled(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int) -> str:
    """A topic of two partitions with ten records each, a minute apart since yesterday."""
    topic = new_topic("filled", partitions=2)
    for partition in (0, 1):
        records = [Record(b"v%d" % n, None, (), yesterday_ms + n * 60_000) for n in range(10)]
        judges["java"].produce(topic, partition, records)
    return topic


def rows(printed: str) -> list[dict[str, str]]:
    """A table out of what a tool printed, by its column names."""
    lines = [line for line in printed.splitlines() if line.strip()]
    first = next(at for at, line in enumerate(lines) if re.match(r"(GROUP|TOPIC)\s", line))
    names = re.split(r"\s{2,}|\s(?=#)", lines[first].replace("COORDINATOR (ID)", "COORDINATOR").strip())
    names = [name for each in names for name in each.split()]
    found = []
    for line in lines[first + 1 :]:
        cells = re.sub(r"\s+\(\d+\)", "", line).split()
        # A group without members may lack its last cells.
        found.append(dict(zip(names, cells, strict=False)))
    return found


@pytest.mark.parametrize(("flavour", "kind"), [("java-range", "Classic"), ("java-consumer", "Consumer")])
def test_a_living_group(tool: Tool, members: Members, broker: Broker, filled: str, flavour: str, kind: str) -> None:
    group = fresh_name("living")
    member = members.join(flavour, group, filled, client_id="reader", instance="fixed")
    settle([member], places_of(filled, 2))
    member.commit({(filled, 0): Committed(4)})
    about = ("--describe", "--group", group)
    assert group in tool(GROUPS, "--list").split()
    assert {"GROUP": group, "STATE": "Stable"} in rows(tool(GROUPS, "--list", "--state"))
    assert group in tool(GROUPS, "--list", "--state", "stable")
    assert group not in tool(GROUPS, "--list", "--state", "empty")
    assert {"GROUP": group, "TYPE": kind} in rows(tool(GROUPS, "--list", "--type"))
    assert {"GROUP": group, "TYPE": kind, "PROTOCOL": "consumer"} in rows(tool("GroupsCommand", "--list"))
    assert group in tool("GroupsCommand", "--list", "--group-type", kind.lower())
    assert group in tool("GroupsCommand", "--list", "--consumer")

    offsets = {row["PARTITION"]: row for row in rows(tool(GROUPS, *about))}
    assert offsets.keys() == {"0", "1"}
    for row in offsets.values():
        assert (row["TOPIC"], row["HOST"], row["CLIENT-ID"]) == (filled, "/127.0.0.1", "reader")
    columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    assert [tuple(offsets[partition][each] for each in columns) for partition in "01"] == [
        ("4", "10", "6"),
        ("-", "10", "-"),
    ]
    (one,) = rows(tool(GROUPS, *about, "--members", "--verbose"))
    assert (one["GROUP-INSTANCE-ID"], one["#PARTITIONS"]) == ("fixed", "2")
    assert one["CURRENT-ASSIGNMENT"] == f"{filled}:0,1"
    (state,) = rows(tool(GROUPS, *about, "--state"))
    strategy = "range" if kind == "Classic" else "uniform"
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"], state["#MEMBERS"]) == (strategy, "Stable", "1")
    assert state["COORDINATOR"] == broker.bootstrap

    refused = tool(GROUPS, "--reset-offsets", "--group", group, "--topic", filled, "--to-earliest", "--execute")
    assert "can only be reset if the group" in refused
    assert "The group is not empty" in tool(GROUPS, "--delete", "--group", group)
    assert "actively subscribed to it" in tool(GROUPS, "--delete-offsets", "--group", group, "--topic", filled)


def test_a_living_share_group(tool: Tool, broker: Broker, filled: str) -> None:
    """Its member is made by hand: what it takes is not asked for here."""
    group = fresh_name("shared")
    about = ("--describe", "--group", group)
    with Wire(broker.bootstrap) as wire:

        def beat(epoch: int, topics: tuple[str, ...] | None = None) -> Any:
            said = {"group_id": group, "member_id": "taker", "member_epoch": epoch, "subscribed_topic_names": topics}
            return wire.call("share_group_heartbeat", 1, **said)

        def is_in() -> bool:
            wire.call("find_coordinator", 4, key_type=0, coordinator_keys=(group,))
            joined = beat(0, (filled,))
            return bool(joined.assignment and joined.assignment.topic_partitions)

        wait_until(is_in, lambda: "the member is given no partitions")
        assert group in tool(SHARE_GROUPS, "--list").split()
        assert {"GROUP": group, "STATE": "Stable"} in rows(tool(SHARE_GROUPS, "--list", "--state"))
        assert group not in tool(SHARE_GROUPS, "--list", "--state", "empty")
        assert {"GROUP": group, "TYPE": "Share", "PROTOCOL": "share"} in rows(tool("GroupsCommand", "--list"))
        assert group in tool("GroupsCommand", "--list", "--share")
        assert group not in tool(GROUPS, "--list").split()
        (one,) = rows(tool(SHARE_GROUPS, *about, "--members"))
        assert (one["CONSUMER-ID"], one["HOST"], one["CLIENT-ID"]) == ("taker", "/127.0.0.1", "wire")
        assert (one["#PARTITIONS"], one["ASSIGNMENT"]) == ("2", f"{filled}:0,1")
        (state,) = rows(tool(SHARE_GROUPS, *about, "--state"))
        assert (state["STATE"], state["#MEMBERS"], state["COORDINATOR"]) == ("Stable", "1", broker.bootstrap)
        assert "is not EMPTY" in tool(SHARE_GROUPS, "--delete", "--group", group)
        assert beat(-1).member_epoch == -1
        (state,) = rows(tool(SHARE_GROUPS, *about, "--state"))
        assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
        tool(SHARE_GROUPS, "--delete", "--group", group)
        assert group not in tool(SHARE_GROUPS, "--list").split()


@pytest.mark.parametrize("flavour", ["java-range", "java-consumer"])
def test_an_empty_group(tool: Tool, members: Members, filled: str, yesterday_ms: int, flavour: str) -> None:
    group = fresh_name("empty")
    member = members.join(flavour, group, filled)
    settle([member], places_of(filled, 2))
    member.commit({place: Committed(4) for place in places_of(filled, 2)})
    members.leave(member)
    admin = members.admin(JavaGroupAdmin)

    def offsets() -> dict[int, int]:
        return {partition: each.offset for (_, partition), each in admin.offsets(group).items()}

    def reset(*how: str, topic: str = filled) -> dict[int, int]:
        printed = tool(GROUPS, "--reset-offsets", "--group", group, "--topic", topic, *how)
        return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in rows(printed)}

    (state,) = rows(tool(GROUPS, "--describe", "--group", group, "--state"))
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
    for row in rows(tool(GROUPS, "--describe", "--group", group)):
        assert (row["CURRENT-OFFSET"], row["LAG"], row["CONSUMER-ID"]) == ("4", "6", "-")

    when = datetime.datetime.fromtimestamp((yesterday_ms + 2.5 * 60_000) / 1000, datetime.UTC)
    moment = when.strftime("%Y-%m-%dT%H:%M:%S.000+00:00")
    assert reset("--to-earliest", "--dry-run") == {0: 0, 1: 0}
    assert reset("--to-datetime", moment, "--dry-run") == {0: 3, 1: 3}
    assert reset("--by-duration", "P7D", "--dry-run") == {0: 0, 1: 0}
    assert offsets() == {0: 4, 1: 4}, "a dry run changes nothing"
    assert reset("--shift-by", "-1", "--execute", topic=f"{filled}:1") == {1: 3}
    assert offsets() == {0: 4, 1: 3}
    assert reset("--shift-by", "100", "--execute", topic=f"{filled}:1") == {1: 10}, "no further than the end"
    assert reset("--to-datetime", moment, "--execute") == {0: 3, 1: 3}
    assert reset("--to-offset", "7", "--execute") == {0: 7, 1: 7}
    assert reset("--to-current", "--execute") == {0: 7, 1: 7}
    assert reset("--to-latest", "--execute") == {0: 10, 1: 10}
    assert reset("--to-earliest", "--execute") == {0: 0, 1: 0}
    assert offsets() == {0: 0, 1: 0}

    deleted = tool(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{filled}:1")
    assert [(row["PARTITION"], row["STATUS"]) for row in rows(deleted)] == [("1", "Successful")]
    assert offsets() == {0: 0}
    assert "was successful" in tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()
    assert "not found" in tool(GROUPS, "--describe", "--group", group)


def table(printed: str) -> list[dict[str, str]]:
    """A table of `TransactionsCommand`, whose columns are set apart by tabs."""
    header, *lines = [[cell.strip() for cell in line.split("\t")] for line in printed.splitlines() if line.strip()]
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_transactions_command(tool: Tool, producers: Producers, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("command"), fresh_name("command")
    producer = producers.open(name, timeout_ms=12_345)
    producer.begin()
    producer.send(topic, 0, b"open")
    place = ("--topic", topic, "--partition", "0")

    def run(*arguments: str) -> list[dict[str, str]]:
        return table(tool("TransactionsCommand", *arguments))

    (listed,) = [row for row in run("list") if row["TransactionalId"] == name]
    assert listed["TransactionState"] == "Ongoing"
    (described,) = run("describe", "--transactional-id", name)
    assert described["ProducerId"] == listed["ProducerId"]
    assert (described["TransactionState"], described["TransactionTimeoutMs"]) == ("Ongoing", "12345")
    assert described["TopicPartitions"] == f"{topic}-0"
    (state,) = run("describe-producers", *place)
    assert (state["ProducerId"], state["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "0")
    # One that its coordinator knows of does not hang, however old.
    assert run("find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []
    assert producers.client.end(topic, 0, READ_COMMITTED) == 0
    tool("TransactionsCommand", "abort", *place, "--start-offset", "0")
    assert producers.client.end(topic, 0, READ_COMMITTED) == 2
    (state,) = run("describe-producers", *place)
    assert state["CurrentTransactionStartOffset"] == "None"


def events(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_consumer(tool: Tool, members: Members, filled: str, protocol: str) -> None:
    group = fresh_name("verifiable")
    how = ("--topic", filled, "--group-id", group, "--group-protocol", protocol)
    seen = events(tool("VerifiableConsumer", *how, "--max-messages", "20", "--verbose"))
    assigned = [each["partitions"] for each in seen if each["name"] == "partitions_assigned"]
    # A client that does not know the topic yet when it is given partitions of it calls back with none of them first.
    assert [[each["partition"] for each in some] for some in assigned if some] == [[0, 1]]
    records = [(each["partition"], each["offset"]) for each in seen if each["name"] == "record_data"]
    assert sorted(records) == [(partition, offset) for partition in (0, 1) for offset in range(10)]
    assert all(each["success"] for each in seen if each["name"] == "offsets_committed")
    offsets = members.admin(JavaGroupAdmin).offsets(group)
    assert {place: each.offset for place, each in offsets.items()} == dict.fromkeys(places_of(filled, 2), 10)


def test_consumer_performance(tool: Tool, filled: str) -> None:
    load = ("--topic", filled, "--num-records", "20", "--timeout", "10000", "--group", fresh_name("performance"))
    header, figures, *_ = tool("ConsumerPerformance", *load).splitlines()
    read = dict(zip(header.split(", "), figures.split(", "), strict=True))
    assert read["data.consumed.in.nMsg"] == "20"


@pytest.mark.parametrize("mode", [(), ("--group-mode",)], ids=["assigned", "subscribed"])
def test_transactional_message_copier(
    broker: Broker, judges: Judges, members: Members, filled: str, new_topic: Callable[..., str], mode: tuple[str, ...]
) -> None:
    """Copies in transactions, of which it aborts some at random and does them again."""
    target, group = new_topic("copies", partitions=2), fresh_name("copier")
    run_tool(
        judges,
        "TransactionalMessageCopier",
        *("--broker-list", broker.bootstrap, "--input-topic", filled, "--input-partition", "0"),
        *("--output-topic", target, "--consumer-group", group, "--transactional-id", group),
        *("--transaction-size", "3", "--enable-random-aborts", "--use-group-metadata", *mode),
    )
    reader = members.join("java-range", fresh_name("copies"), places=((target, 0),), isolation=READ_COMMITTED)
    wait_until(lambda: len(reader.received) >= 10, lambda: f"only {reader.values()}")
    assert reader.values() == [b"v%d" % n for n in range(10)]
    assert members.admin(JavaGroupAdmin).offsets(group)[filled, 0].offset == 10


def console(tool: Tool, topic: str, formatter: str) -> list[dict[str, Any]]:
    """All records of an internal topic as a formatter of the console consumer prints them: JSON without line ends."""
    kind = f"org.apache.kafka.tools.consumer.{formatter}"
    text = tool(CONSOLE, "--topic", topic, "--formatter", kind, "--from-beginning", "--timeout-ms", "1500")
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    return found


def test_console_prints_offsets_and_groups(tool: Tool, members: Members, filled: str) -> None:
    group = fresh_name("printed")
    member = members.join("java-range", group, filled, client_id="printed")
    settle([member], places_of(filled, 2))
    member.commit({(filled, 1): Committed(3, "a note")})
    members.leave(member)
    admin = members.admin(JavaGroupAdmin)
    admin.delete_offsets(group, (filled, 1))

    of_group = [
        each
        for each in console(tool, "__consumer_offsets", "OffsetsMessageFormatter")
        if each["key"]["data"]["group"] == group
    ]
    key = {"type": 1, "data": {"group": group, "topic": filled, "partition": 1}}
    assert [each["key"] for each in of_group] == [key, key]
    committed, deleted = (each["value"] for each in of_group)
    assert deleted is None
    assert committed["data"].items() >= {"offset": 3, "leaderEpoch": -1, "metadata": "a note"}.items()
    assert committed["data"]["commitTimestamp"] > 0

    states = [
        each["value"]["data"]
        for each in console(tool, "__consumer_offsets", "GroupMetadataMessageFormatter")
        if each["key"] == {"type": 2, "data": {"group": group}} and each["value"] is not None
    ]
    (full,) = (each for each in states if each["members"])
    assert (full["protocolType"], full["protocol"], full["generation"]) == ("consumer", "range", 1)
    (described,) = full["members"]
    assert described["memberId"] == full["leader"]
    assert (described["clientId"], described["clientHost"]) == ("printed", "/127.0.0.1")
    assert described["sessionTimeout"] == 6000
    assert (states[-1]["members"], states[-1]["generation"]) == ([], 2), "the last word: nobody is left"


def test_console_prints_transactions(tool: Tool, producers: Producers, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("printed", partitions=2), fresh_name("printed")
    producer = producers.open(name, timeout_ms=9_876)
    producer.begin()
    producer.send(topic, 0, b"v")
    producer.send(topic, 1, b"v")
    producer.commit()

    def states() -> list[dict[str, Any]]:
        return [
            each["value"]["data"]
            for each in console(tool, "__transaction_state", "TransactionLogMessageFormatter")
            if each["key"] == {"type": 0, "data": {"transactionalId": name}}
        ]

    wait_until(lambda: states()[-1]["transactionStatus"] == 4, states)  # CompleteCommit
    found = states()
    assert {each["transactionTimeoutMs"] for each in found} == {9_876}
    # Empty, Ongoing (once or twice: the client may add its partitions one by one), PrepareCommit, CompleteCommit.
    statuses = [each["transactionStatus"] for each in found]
    assert [status for at, status in enumerate(statuses) if statuses[:at][-1:] != [status]] == [0, 1, 2, 4]
    prepared = next(each for each in found if each["transactionStatus"] == 2)
    (places,) = prepared["transactionPartitions"]
    assert (places["topic"], sorted(places["partitionIds"])) == (topic, [0, 1])
    assert found[0]["transactionPartitions"] is None
