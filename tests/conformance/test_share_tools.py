"""Kafka's own commands and consumers for share groups: what they show and change, and that nothing is lost or twice."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.peers.broker import Broker

from .clients.members_groups import _wait_for_coordinator
from .clients.shares import ACCEPT, RELEASE, ShareMember, Taken
from .conftest import Admins, Judges, fresh_name, run_tool
from .records import Record
from .test_group_tools import SHARE_GROUPS, events, rows
from .test_shares import Sharers, nothing, places, take

RECORDS = 10
Tool = Callable[..., str]


@pytest.fixture
def sharers(broker: Broker, judges: Judges, admins: Admins) -> Iterator[Sharers]:
    _wait_for_coordinator(broker.bootstrap)
    made = Sharers(broker, judges, admins.java)
    yield made
    made.close()


@pytest.fixture
def tool(broker: Broker, judges: Judges) -> Tool:
    """Runs a tool against the broker and hands out what it printed."""

    def run(name: str, *arguments: str, code: int = 0) -> str:
        return run_tool(judges, name, "--bootstrap-server", broker.bootstrap, *arguments, code=code)

    return run


@pytest.fixture
def filled(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int) -> str:
    """A topic of two partitions with ten records each, a minute apart since yesterday."""
    topic = new_topic("filled", partitions=2)
    for partition in (0, 1):
        records = [Record(b"v%d" % n, None, (), yesterday_ms + n * 60_000) for n in range(RECORDS)]
        judges["java"].produce(topic, partition, records)
    return topic


class Shown:
    """What the command shows of a group, and does to it."""

    def __init__(self, tool: Tool, group: str, topic: str) -> None:
        self._tool = tool
        self._topic = topic
        self.group = group

    def run(self, *arguments: str, code: int = 0) -> str:
        return self._tool(SHARE_GROUPS, *arguments, "--group", self.group, code=code)

    def _by_partition(self, printed: str, column: str) -> dict[int, int]:
        if "PARTITION" not in printed:
            return {}
        found = {row["PARTITION"]: row[column] for row in rows(printed) if row["TOPIC"] == self._topic}
        return {int(partition): int(text) for partition, text in found.items() if text != "-"}

    @property
    def lags(self) -> dict[int, int]:
        return self._by_partition(self.run("--describe", "--offsets"), "LAG")

    @property
    def starts(self) -> dict[int, int]:
        """To be compared where a group has just been told to begin: Kafka does not always write down that it moved."""
        return self._by_partition(self.run("--describe"), "START-OFFSET")

    def reset(self, *how: str, partitions: str = "") -> dict[int, int]:
        printed = self.run("--reset-offsets", "--topic", self._topic + partitions, *how)
        return self._by_partition(printed, "NEW-OFFSET")

    def forget(self) -> str:
        (row,) = rows(self.run("--delete-offsets", "--topic", self._topic))
        return row["STATUS"]


def take_all(member: ShareMember, *released: tuple[int, int]) -> list[Taken]:
    """All there is, once; what is not named is accepted."""
    found: list[Taken] = []
    while len(found) < 2 * RECORDS:
        for each in take(member, 1, None):
            member.acknowledge(each, RELEASE if (each.partition, each.offset) in released else ACCEPT)
            found.append(each)
    assert set(member.commit().values()) <= {0}
    return found


def test_a_living_share_group_is_shown_and_not_changed(tool: Tool, sharers: Sharers, filled: str) -> None:
    shown = Shown(tool, sharers.group("living"), filled)
    member = sharers.join("java", shown.group, filled)
    take_all(member, (1, 4))
    assert shown.lags == {0: 0, 1: 1}
    (one,) = rows(shown.run("--describe", "--members"))
    assert (one["HOST"], one["#PARTITIONS"], one["ASSIGNMENT"]) == ("/127.0.0.1", "2", f"{filled}:0,1")
    (state,) = rows(shown.run("--describe", "--state"))
    assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")
    shown.run("--reset-offsets", "--topic", filled, "--to-earliest", "--execute", code=1)
    assert "Error" in shown.run("--delete-offsets", "--topic", filled)
    assert "is not EMPTY" in shown.run("--delete")
    assert shown.lags == {0: 0, 1: 1}
    again = take(member, 1)
    assert [(each.partition, each.offset, each.deliveries) for each in again] == [(1, 4, 2)]
    member.commit()
    assert shown.lags == {0: 0, 1: 0}


def test_an_empty_share_group_begins_where_it_is_told(
    tool: Tool, sharers: Sharers, filled: str, yesterday_ms: int
) -> None:
    shown = Shown(tool, sharers.group("reset"), filled)
    member = sharers.join("java", shown.group, filled)
    take_all(member)
    sharers.leave(member)
    (state,) = rows(shown.run("--describe", "--state"))
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
    when = datetime.datetime.fromtimestamp((yesterday_ms + 2.5 * 60_000) / 1000, datetime.UTC)
    moment = when.strftime("%Y-%m-%dT%H:%M:%S.000+00:00")
    assert shown.reset("--to-earliest", "--dry-run") == {0: 0, 1: 0}
    assert shown.reset("--to-datetime", moment, "--dry-run") == {0: 3, 1: 3}
    assert shown.lags == {0: 0, 1: 0}, "a dry run changes nothing"
    assert shown.reset("--to-earliest", "--execute") == {0: 0, 1: 0}
    assert (shown.starts, shown.lags) == ({0: 0, 1: 0}, {0: 10, 1: 10})
    assert shown.reset("--to-datetime", moment, "--execute", partitions=":1") == {1: 3}
    assert (shown.starts, shown.lags) == ({0: 0, 1: 3}, {0: 10, 1: 7})
    assert shown.reset("--to-latest", "--execute", partitions=":0") == {0: 10}
    assert (shown.starts, shown.lags) == ({0: 10, 1: 3}, {0: 0, 1: 7})
    again = sharers.join("java", shown.group, filled)
    assert places(take(again, 7)) == [(1, offset) for offset in range(3, RECORDS)]
    assert set(again.commit().values()) <= {0}
    nothing(again)
    assert shown.lags == {0: 0, 1: 0}


def test_a_share_group_is_made_by_being_told_where_to_begin(tool: Tool, sharers: Sharers, filled: str) -> None:
    shown = Shown(tool, sharers.group("made"), filled)
    assert shown.reset("--to-latest", "--execute", partitions=":1") == {1: RECORDS}
    assert shown.group in tool(SHARE_GROUPS, "--list").split()
    assert shown.starts == {1: RECORDS}
    member = sharers.join("java", shown.group, filled)
    assert places(take(member, RECORDS)) == [(0, offset) for offset in range(RECORDS)]
    member.commit()
    nothing(member)


def test_a_share_group_forgets_topics_and_is_forgotten(tool: Tool, sharers: Sharers, filled: str) -> None:
    shown = Shown(tool, sharers.group("forgetting"), filled)
    for done in (shown.forget, lambda: shown.run("--delete")):
        member = sharers.join("java", shown.group, filled)
        assert len(take_all(member)) == 2 * RECORDS
        sharers.leave(member)
        done()
        if done == shown.forget:
            assert shown.lags == {}
            assert "Error" in shown.run("--delete-offsets", "--topic", filled), "there is nothing any more"
        else:
            assert shown.group not in tool(SHARE_GROUPS, "--list").split()
    member = sharers.join("java", shown.group, filled)
    assert len(take_all(member)) == 2 * RECORDS


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_verifiable_share_consumer(tool: Tool, sharers: Sharers, filled: str, mode: str) -> None:
    shown = Shown(tool, fresh_name("verifiable"), filled)
    how = ("--topic", filled, "--group-id", shown.group, "--acknowledgement-mode", mode)
    count = ("--max-messages", str(2 * RECORDS), "--verbose", "--offset-reset-strategy", "earliest")
    seen = events(tool("VerifiableShareConsumer", *how, *count))
    everything = {(partition, offset): 1 for partition in (0, 1) for offset in range(RECORDS)}
    consumed = Counter((each["partition"], each["offset"]) for each in seen if each["name"] == "record_data")
    assert consumed == everything
    acked = [each for each in seen if each["name"] == "offsets_acknowledged"]
    assert all(each["success"] for each in acked)
    told = Counter(
        (row["partition"], offset) for each in acked for row in each["partitions"] for offset in row["offsets"]
    )
    assert told == everything
    assert shown.lags == {0: 0, 1: 0}
    nothing(sharers.join("java", shown.group, filled))


def test_share_consumer_performance(
    tool: Tool, sharers: Sharers, judges: Judges, new_topic: Callable[..., str]
) -> None:
    topic, count = new_topic("performance", partitions=2), 500
    for partition in (0, 1):
        judges["confluent"].produce(topic, partition, [Record(b"%d" % each) for each in range(count)])
    shown = Shown(tool, sharers.group("performance"), topic)
    load = ("--topic", topic, "--group", shown.group, "--num-records", str(2 * count), "--threads", "2")
    header, figures, *_ = tool("ShareConsumerPerformance", *load).splitlines()
    read = dict(zip(header.split(", "), figures.split(", "), strict=True))
    assert read["data.consumed.in.nMsg"] == str(2 * count), "each record once"
    assert shown.lags == {0: 0, 1: 0}
    nothing(sharers.join("java", shown.group, topic))
