"""Consumer groups by example: each file in tests/scenarios/consumer is a story, and must be told exactly like that.

A line is something that happens; indented lines are all that comes of it: the answer (`a at 2: orders:0-1` when the
member is told what it has, `a at 2` when that is as it knows it), records (`-` before one that takes a key back), and
the group's state when it changes. A member comes with the epoch it was last told, unless the line names another.

    topics NAME=COUNT …            topics are made, or grow          drop NAME …
    hide MEMBER [TOPIC,…]          the topics that a member may not be told of, from now on
    join MEMBER TOPIC … [regex=P] [instance=I] [assignor=A] [timeout=MS] [lost]
    beat MEMBER [epoch=N] [instance=I] [subscribe=TOPIC,…] [regex=P] [assignor=A] [timeout=MS] [has PARTITIONS] [lost]
    leave MEMBER [instance=I]      pause MEMBER instance=I           (a static member leaves for a while)
    remove MEMBER[/INSTANCE] …     by an administrator; `-` for the member leaves it to the instance
    commit MEMBER epoch=N          describe                          +1s
    restart                        the group is made again from its records
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.engine.groups.consumer_world import FakeRules, FakeTopics

from penstock.engine.coordination.schemas import Entry, Kind
from penstock.engine.groups.classic_requests import LeavingMember
from penstock.engine.groups.consumer import ConsumerGroup
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat, ConsumerHeartbeatResult, ConsumerLimits
from penstock.errors import PenstockError

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "consumer"
LIMITS = ConsumerLimits(max_size=3)
KINDS = {
    Kind.CONSUMER_GROUP: "group",
    Kind.CONSUMER_MEMBER: "member",
    Kind.CONSUMER_TARGET_EPOCH: "target-epoch",
    Kind.CONSUMER_TARGET: "target",
    Kind.CONSUMER_CURRENT: "current",
    Kind.CONSUMER_REGEX: "regex",
}


class Story:
    def __init__(self) -> None:
        self.topics = FakeTopics()
        self.rules = FakeRules()
        self.now = 0
        self.named = 0
        self.group = self.make_group()
        self.written: list[Entry] = []
        self.epochs: dict[str, int] = {}
        self.state = "Dead"

    def make_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", self.new_id, LIMITS)

    def new_id(self) -> str:
        self.named += 1
        return f"named-{self.named}"

    def tell(self, line: str) -> Iterator[str]:
        verb, *words = line.split()
        try:
            if verb.startswith("+"):
                yield from self.advance(int(verb[1:].removesuffix("s")) * 1000)
            else:
                yield from getattr(self, f"do_{verb}")(words)
        except PenstockError as error:
            yield f"error {error.code.name}"
        if self.group.state != self.state:
            self.state = self.group.state
            yield f"state {self.state}"
        again = self.make_group()
        for entry in self.written:
            again.replay(entry, self.now)
        assert set(again.dump()) == set(self.group.dump()), "the records do not tell the whole story"

    def records(self, entries: tuple[Entry, ...]) -> Iterator[str]:
        self.written += entries
        if entries:
            yield "records " + " ".join(self.format(entry) for entry in entries)

    def format(self, entry: Entry) -> str:
        if entry.kind is Kind.CONSUMER_GROUP and entry.value:
            return f"group={entry.value.epoch}"
        if entry.kind is Kind.CONSUMER_TARGET_EPOCH and entry.value:
            return f"target-epoch={entry.value.assignment_epoch}"
        return ("" if entry.value else "-") + ":".join([KINDS[entry.kind], *entry.key[1:]])

    def beat(self, member: str, epoch: int, words: list[str], joins: bool = False) -> Iterator[str]:
        lost = "lost" in words
        words = [word for word in words if word != "lost"]
        owned = self.topics.parse(words[words.index("has") + 1 :]) if "has" in words else () if joins else None
        words = words[: words.index("has")] if "has" in words else words
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = tuple(word for word in words if "=" not in word) if joins else None
        if "subscribe" in options:
            names = tuple(filter(None, options["subscribe"].split(",")))
        request = ConsumerHeartbeat(
            "g",
            "" if member == "-" else member,
            epoch,
            options.get("instance"),
            rebalance_timeout_ms=int(options.get("timeout", 60_000 if joins else -1)),
            subscribed_topic_names=names,
            subscribed_topic_regex=options.get("regex"),
            server_assignor=options.get("assignor"),
            topic_partitions=owned,
        )
        result, entries = self.group.heartbeat(self.now, request, self.topics, sight=self.rules.sight(member))
        if not lost:
            self.epochs[result.member_id] = result.member_epoch
        yield self.answer(result)
        yield from self.records(entries)

    def answer(self, result: ConsumerHeartbeatResult) -> str:
        told = "" if result.assignment is None else f": {self.topics.format(result.assignment)}"
        return f"{result.member_id} at {result.member_epoch}{told}"

    def do_join(self, words: list[str]) -> Iterator[str]:
        return self.beat(words[0], 0, words[1:], joins=True)

    def do_beat(self, words: list[str]) -> Iterator[str]:
        member, *rest = words
        given = [word for word in rest if word.startswith("epoch=")]
        epoch = int(given[0][6:]) if given else self.epochs[member]
        return self.beat(member, epoch, [word for word in rest if word not in given and word != "nothing"])

    def do_leave(self, words: list[str]) -> Iterator[str]:
        return self.beat(words[0], -1, words[1:])

    def do_pause(self, words: list[str]) -> Iterator[str]:
        return self.beat(words[0], -2, words[1:])

    def do_remove(self, words: list[str]) -> Iterator[str]:
        named = [word.partition("/") for word in words]
        leaving = [LeavingMember("" if member == "-" else member, instance or None) for member, _, instance in named]
        results, entries = self.group.leave(self.now, leaving, self.topics)
        for word, result in zip(words, results, strict=True):
            yield f"{word} " + (f"error {result.error.code.name}" if result.error else "gone")
        yield from self.records(entries)

    def do_topics(self, words: list[str]) -> Iterator[str]:
        for word in words:
            name, count = word.split("=")
            self.topics.put(name, int(count))
        yield from ()

    def do_drop(self, words: list[str]) -> Iterator[str]:
        for name in words:
            self.topics.remove(name)
        yield from ()

    def do_hide(self, words: list[str]) -> Iterator[str]:
        member, *names = words
        self.rules.hide(member, names[0].split(",") if names else ())
        yield from ()

    def do_commit(self, words: list[str]) -> Iterator[str]:
        member = "" if words[0] == "-" else words[0]
        self.group.check_commit(self.now, member, int(words[1].removeprefix("epoch=")), None)
        yield "ok"

    def do_delete(self, words: list[str]) -> Iterator[str]:
        yield from self.records(self.group.delete())

    def do_restart(self, words: list[str]) -> Iterator[str]:
        self.group = self.make_group()
        for entry in self.written:
            self.group.replay(entry, self.now)
        yield from ()

    def do_describe(self, words: list[str]) -> Iterator[str]:
        group = self.group.describe(self.topics)
        yield f"{group.state} epoch {group.group_epoch} target {group.assignment_epoch} by {group.assignor_name}"
        for member in group.members:
            has, target = (
                self.topics.format((part.topic_id, part.partitions) for part in parts)
                for parts in (member.assignment, member.target_assignment)
            )
            yield f"{member.member_id} at {member.member_epoch} has {has}, is to have {target}"

    def advance(self, duration_ms: int) -> Iterator[str]:
        end = self.now + duration_ms
        while (due := self.group.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            entries = self.group.tick(self.now, self.topics)
            if entries:
                yield f"at {self.now / 1000:g}s"
                yield from self.records(entries)
        self.now = end


def retell(text: str) -> str:
    """The scenario with what really comes of each line."""
    story, lines = Story(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += ["    " + outcome for outcome in story.tell(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    text = path.read_text()
    assert retell(text) == text


def test_there_are_stories() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) > 10
