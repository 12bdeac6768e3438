"""Scenarios of a classic group as text: an event per line, below it, indented, all that it causes.

    # a comment
    limits max_size=2                                 before anything else; see GroupLimits
    join a range:X,roundrobin:X                       client a without a member id; protocols by liking, with metadata
    join a as a-1 [v3] [instance=i] [session=10s] [rebalance=60s] [type=consumer] range:X
    sync a as a-1 generation=1 a-1=P0 b-2=P1          the assignments come from the leader
    heartbeat a-1 generation=1
    commit a-1 generation=1                           may this member commit offsets? `-` for no member
    leave a-1 instance=i                              several members are several words
    +300ms, +10s                                      time passes; what falls due on the way happens when it is due
    restart                                           a new machine is made from the records
    describe, delete

A name like `a/2` is client a again, beside its request that still waits. Results: `state` when it changed, `record`
for the log, `a: …` for an answer, `error CODE` for a refusal, `left …` for who left; `at N` says when.
`REWRITE=1` writes what happens into the files; read the difference before you keep it.
"""

import os
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry, GroupValue
from penstock.engine.groups.classic import (
    ClassicGroup,
    GroupLimits,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberIdRequired,
    SyncRequest,
    SyncResult,
)
from penstock.errors import PenstockError

GROUP = "g"
SCENARIOS = sorted(Path(__file__).parents[3].joinpath("scenarios", "classic").glob("*.txt"))
_UNITS = {"ms": 1, "s": 1000}


def parse(text: str) -> list[tuple[str, list[str]]]:
    """Lines of a scenario, each with the indented ones below it; comments and blank lines have none."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            blocks[-1][1].append(line.strip())
        else:
            blocks.append((line, []))
    return blocks


def play(path: Path) -> str:
    """The file as it would be if it expected what happens."""
    scene, lines = Scene(), []
    for event, _ in parse(path.read_text()):
        lines.append(event)
        if event and not event.startswith("#"):
            lines += [f"    {result}" for result in scene.step(event)]
    return "\n".join(lines) + "\n"


class Scene:
    def __init__(self) -> None:
        self.now = 0
        self.limits = GroupLimits()
        self.records: list[Entry] = []
        ids = count(1)
        self.new_id: Callable[[], str] = lambda: str(next(ids))
        self.group = self._fresh()
        self.said_state = self.group.state

    def _fresh(self) -> ClassicGroup:
        return ClassicGroup(GROUP, self.new_id, self.limits)

    def step(self, event: str) -> list[str]:
        if event.startswith("+"):
            return self._pass(_duration(event[1:]))
        verb, *words = event.split()
        try:
            results = getattr(self, f"_{verb}")(words)
        except PenstockError as error:
            results = [f"error {error.code.name}"]
        return [*self._state(), *results]

    def _pass(self, duration: int) -> list[str]:
        lines, until = [], self.now + duration
        while (due := self.group.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            happened = self._show(self.group.tick(self.now))
            if changed := self._state() + happened:
                lines += [f"at {self.now}", *changed]
        self.now = until
        return lines

    def _state(self) -> list[str]:
        if self.group.state == self.said_state:
            return []
        self.said_state = self.group.state
        return [f"state {self.said_state}"]

    def _show(self, outcome: Outcome) -> list[str]:
        self.records += outcome.records
        records = [f"record {show_record(entry.value)}" for entry in outcome.records]
        return records + [f"{reply.to}: {show_answer(reply.answer)}" for reply in outcome.replies]

    # --- events

    def _limits(self, words: list[str]) -> list[str]:
        self.limits = GroupLimits(**{name: int(value) for name, value in (word.split("=") for word in words)})
        self.group = self._fresh()
        return []

    def _join(self, words: list[str]) -> list[str]:
        options, rest = _options(words)
        name, version = rest[0], next((int(word[1:]) for word in rest if re.fullmatch(r"v\d", word)), 9)
        protocols = tuple(
            (protocol, metadata.encode())
            for protocol, _, metadata in (part.partition(":") for part in rest[-1].split(","))
            if protocol != "-"
        )
        request = JoinRequest(
            GROUP,
            rest[rest.index("as") + 1] if "as" in rest else "",
            options.get("instance"),
            name.partition("/")[0],
            "/10.0.0.1",
            options.get("type", "stream"),
            protocols,
            _duration(options.get("session", "10s")),
            _duration(options.get("rebalance", "60s")),
            version >= 4,
            version >= 9,
        )
        return self._show(self.group.join(self.now, name, request))

    def _sync(self, words: list[str]) -> list[str]:
        options, rest = _options(words)
        instance, generation = options.pop("instance", None), int(options.pop("generation"))
        kind, protocol = options.pop("type", None), options.pop("protocol", None)
        assignments = tuple((member_id, part.encode()) for member_id, part in options.items())
        request = SyncRequest(GROUP, generation, rest[2], instance, kind, protocol, assignments)
        return self._show(self.group.sync(self.now, rest[0], request))

    def _heartbeat(self, words: list[str]) -> list[str]:
        options, rest = _options(words)
        request = HeartbeatRequest(GROUP, int(options["generation"]), rest[0], options.get("instance"))
        self.group.heartbeat(self.now, request)
        return ["ok"]

    def _commit(self, words: list[str]) -> list[str]:
        options, rest = _options(words)
        self.group.check_commit(
            self.now,
            "" if rest[0] == "-" else rest[0],
            int(options.get("generation", -1)),
            options.get("instance"),
            transactional="transactional" in rest,
        )
        return ["ok"]

    def _leave(self, words: list[str]) -> list[str]:
        members = tuple(
            LeavingMember("", word.partition("=")[2]) if word.startswith("instance=") else LeavingMember(word, None)
            for word in words
        )
        results, outcome = self.group.leave(self.now, members)
        left = [
            f"left {result.member_id or result.group_instance_id}: {result.error.code.name if result.error else 'ok'}"
            for result in results
        ]
        return left + self._show(outcome)

    def _restart(self, words: list[str]) -> list[str]:
        self.group = self._fresh()
        for entry in self.records:
            self.group.replay(entry.value, self.now)
        return []

    def _describe(self, words: list[str]) -> list[str]:
        group = self.group.describe()
        members = [
            f"{member.member_id} {member.metadata.decode() or '-'} {member.assignment.decode() or '-'}"
            for member in group.members
        ]
        return [f"{group.state} {group.protocol_type or '-'} {group.protocol or '-'}", *members]

    def _delete(self, words: list[str]) -> list[str]:
        return self._show(Outcome(self.group.delete()))


def show_record(value: GroupValue | None) -> str:
    if value is None:
        return "deleted"
    members = [
        f"{member.member_id}{f'({member.group_instance_id})' if member.group_instance_id else ''}"
        f"={member.assignment.decode() or '-'}"
        for member in value.members
    ]
    leader = f" leader={value.leader}" if value.leader else ""
    return " ".join([f"generation={value.generation} {value.protocol or 'nobody'}{leader}", *members])


def show_answer(answer: JoinResult | SyncResult | PenstockError) -> str:
    if isinstance(answer, MemberIdRequired):
        return f"join again as {answer.member_id}"
    if isinstance(answer, PenstockError):
        return f"error {answer.code.name}"
    if isinstance(answer, SyncResult):
        return f"assigned {answer.assignment.decode() or 'nothing'}"
    members = " ".join(f"{member.member_id}:{member.metadata.decode()}" for member in answer.members)
    role = f"leads {members}" if answer.members else f"follows {answer.leader}"
    skips = " and skips the assignment" if answer.skip_assignment else ""
    return f"{answer.member_id} in generation {answer.generation}, {answer.protocol_name}, {role}{skips}"


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return options, [word for word in words if "=" not in word]


def _duration(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s)", text)
    assert match, text
    return int(match[1]) * _UNITS[match[2]]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    happened = play(path)
    if os.environ.get("REWRITE"):
        path.write_text(happened)
    assert path.read_text() == happened


def test_all_scenarios_are_found() -> None:
    assert len(SCENARIOS) > 10
