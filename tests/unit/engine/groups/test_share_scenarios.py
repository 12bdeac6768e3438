"""Share groups by example: each file in tests/scenarios/share is a story, and must be told exactly like that.

A line is something that happens; indented lines are all that comes of it: the answer (`a at 2: orders:0-1` when the
member is told what it takes from, `a at 2` when that is as it knows it), records (`-` before one that takes a key back;
`given` is how far the group's topics have begun), and the group's state when it changes. A member comes with the epoch
it was last told, unless the line names another.

    topics NAME=COUNT …            topics are made, or grow          drop NAME …
    join MEMBER TOPIC … [rack=R] [lost]
    beat MEMBER [epoch=N] [subscribe=TOPIC,…] [rack=R] [lost]
    leave MEMBER                   commit MEMBER epoch=N             delete
    describe                       start PARTITIONS                  +1s
    forget NAME                    the group is told that a topic of that name was deleted
    restart                        the group is made again from its records
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.engine.groups.consumer_world import FakeTopics

from penstock.engine.coordination.schemas import Entry, Kind
from penstock.engine.groups.share import ShareGroup
from penstock.engine.groups.share_requests import ShareHeartbeat, ShareLimits, ShareTimes
from penstock.errors import PenstockError

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "share"
LIMITS = ShareLimits(max_size=4)
KINDS = {
    Kind.SHARE_GROUP: "group",
    Kind.SHARE_MEMBER: "member",
    Kind.SHARE_TARGET_EPOCH: "target-epoch",
    Kind.SHARE_TARGET: "target",
    Kind.SHARE_CURRENT: "current",
    Kind.SHARE_STATE: "given",
}


class Story:
    def __init__(self) -> None:
        self.topics = FakeTopics()
        self.now = 0
        self.group = self.make_group()
        self.written: list[Entry] = []
        self.epochs: dict[str, int] = {}
        self.state = "Dead"

    def make_group(self) -> ShareGroup:
        return ShareGroup("g", LIMITS, lambda group_id: ShareTimes())

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
        assert again.size_bytes == self.group.size_bytes

    def records(self, entries: tuple[Entry, ...]) -> Iterator[str]:
        self.written += entries
        if entries:
            yield "records " + " ".join(self.format(entry) for entry in entries)

    def format(self, entry: Entry) -> str:
        if entry.kind is Kind.SHARE_GROUP and entry.value:
            return f"group={entry.value.epoch}"
        if entry.kind is Kind.SHARE_TARGET_EPOCH and entry.value:
            return f"target-epoch={entry.value.assignment_epoch}"
        if entry.kind is Kind.SHARE_STATE and entry.value:
            topics = entry.value.initialized_topics
            return "given=" + ",".join(f"{topic.topic_name}:{len(topic.partitions)}" for topic in topics)
        return ("" if entry.value else "-") + ":".join([KINDS[entry.kind], *entry.key[1:]])

    def beat(self, member: str, epoch: int, words: list[str], joins: bool = False) -> Iterator[str]:
        lost = "lost" in words
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = tuple(word for word in words if "=" not in word and word != "lost") if joins else None
        if "subscribe" in options:
            names = tuple(filter(None, options["subscribe"].split(",")))
        request = ShareHeartbeat(
            "g", member, epoch, options.get("rack"), subscribed_topic_names=names, client_id="c", client_host="h"
        )
        result, entries = self.group.heartbeat(self.now, request, self.topics)
        if not lost:
            self.epochs[member] = result.member_epoch
        told = "" if result.assignment is None else f": {self.topics.format(result.assignment)}"
        yield f"{result.member_id} at {result.member_epoch}{told}"
        yield from self.records(entries)

    def do_join(self, words: list[str]) -> Iterator[str]:
        return self.beat(words[0], 0, words[1:], joins=True)

    def do_beat(self, words: list[str]) -> Iterator[str]:
        member, *rest = words
        given = [word for word in rest if word.startswith("epoch=")]
        epoch = int(given[0][6:]) if given else self.epochs[member]
        return self.beat(member, epoch, [word for word in rest if word not in given])

    def do_leave(self, words: list[str]) -> Iterator[str]:
        return self.beat(words[0], -1, words[1:])

    def do_topics(self, words: list[str]) -> Iterator[str]:
        for word in words:
            name, count = word.split("=")
            self.topics.put(name, int(count))
        yield from ()

    def do_drop(self, words: list[str]) -> Iterator[str]:
        for name in words:
            self.topics.remove(name)
        yield from ()

    def do_forget(self, words: list[str]) -> Iterator[str]:
        yield from self.records(self.group.forget_topic(words[0], self.topics))

    def do_start(self, words: list[str]) -> Iterator[str]:
        for topic_id, numbers in self.topics.parse(words):
            info = self.topics.get_by_id(topic_id)
            assert info is not None
            for number in numbers:
                start = self.group.start_of(topic_id, number)
                told = "was never given"
                if start is not None:
                    where = "is open" if start.offset is None else f"is at {start.offset}"
                    told = f"{where}, since epoch {start.state_epoch}"
                yield f"{info.name}:{number} {told}"

    def do_commit(self, words: list[str]) -> Iterator[str]:
        self.group.check_commit(self.now, words[0], int(words[1].removeprefix("epoch=")), None)
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
            has = self.topics.format((part.topic_id, part.partitions) for part in member.assignment)
            rack = f" in {member.rack_id}" if member.rack_id else ""
            yield f"{member.member_id}{rack} at {member.member_epoch} takes from {has}"

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
    assert len(list(SCENARIOS.glob("*.txt"))) > 8
