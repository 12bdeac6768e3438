"""Queues whose messages are not alike, against a plain list of messages: whatever is done, in whatever order.

A lease may only have what is due and free, and only if nothing that is due and free was left out does it have less than
was asked for. So a message that the ledger would forget to give out shows at once.
"""

import random
from dataclasses import dataclass
from typing import Final

import pytest

from penstock.engine.queues.answers import Want
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES, QueueRules
from penstock.engine.queues.sorting.lanes import LaneOrder
from penstock.engine.queues.sorting.marks import LANE_OF_PRIORITY, Said
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind

STEPS: Final = 300
ALL_FREE: Final = QUEUE_RULES._replace(
    limit=200, max_unacked=1 << 30, max_unacked_consumer=1 << 30, dead_letter=None, visibility_ms=60_000
)
RULES: Final = {
    "weighted": ALL_FREE,
    "strict": ALL_FREE._replace(lanes=LaneOrder.STRICT),
    "fifo": ALL_FREE._replace(is_fifo=True),
    "delayed": ALL_FREE._replace(delay_ms=500),
    "fifo and delayed": ALL_FREE._replace(is_fifo=True, delay_ms=200, lanes=LaneOrder.STRICT),
}


@dataclass
class Message:
    said: Said
    due: int
    is_own_due: bool
    sent: int
    state: str = "free"
    lease: int = 0

    @property
    def place(self) -> tuple[int, str]:
        priority = 4 if self.said.priority is None else self.said.priority
        return LANE_OF_PRIORITY[priority], self.said.tenant or ""


class Trial:
    def __init__(self, rules: QueueRules, chance: random.Random) -> None:
        self.rules, self.chance = rules, chance
        self.now, self.ids = 1_000, iter(range(1, 1 << 62))
        self.messages: list[Message] = []
        self.entries: list[tuple[object, ...]] = []
        self.end_bound = 0
        self.looked = 0
        """Messages that were looked at, by the broker that leads."""
        self.machine = self.make()
        self.keep(self.machine.open(self.now, 0, "q", 0))
        self.machine.look_from(0)

    def make(self) -> LedgerMachine:
        return LedgerMachine(lambda _: self.rules, tuple, lambda: next(self.ids), lambda: 0.0, made=lambda: ("q",))

    def keep(self, outcome: object) -> None:
        self.entries += [(each,) for each in outcome.records]  # type: ignore[attr-defined]

    # --- what can happen

    def send(self) -> None:
        chance = self.chance
        begin, count = len(self.messages), chance.choice((1, 3, 20, 70))
        is_plain = chance.random() < 0.3
        for offset in range(begin, begin + count):
            each = Said(offset) if is_plain else self.say(offset)
            own = each.due_ms is not None
            due = each.due_ms if each.due_ms is not None else self.now + self.rules.delay_ms
            self.messages.append(Message(each, due, own, self.now))
        self.look(None if chance.random() < 0.8 else chance.choice((1, 10)))

    def look(self, most: int | None = None) -> None:
        """At so many more messages, or at all."""
        until = len(self.messages) if most is None else min(self.looked + most, len(self.messages))
        more = self.messages[self.looked : until]
        if not more:
            return
        said = [each.said for each in more if each.said != Said(each.said.offset)]
        self.machine.looked(self.now, until - 1, said, min(max(each.sent for each in more), self.now))
        self.looked = until

    def say(self, offset: int) -> Said:
        chance = self.chance
        return Said(
            offset,
            priority=chance.choice((None, None, *range(10))),
            tenant=chance.choice((None, None, "a", "b", "c")),
            key=b"k%d" % chance.randrange(6) if self.rules.is_fifo and chance.random() < 0.8 else None,
            due_ms=self.now + chance.choice((-5, 0, 1, 40, 700)) if chance.random() < 0.3 else None,
        )

    def lease(self) -> None:
        chance = self.chance
        most, lane = chance.choice((1, 2, 10, 100)), chance.choice((None, None, None, *range(5)))
        end = chance.choice((len(self.messages), self.end_bound))
        self.end_bound = max(self.end_bound, end)
        free = self.free(end, lane)
        given, outcome = self.machine.lease(self.now, Want("q", "c", most, lane=lane), end)
        self.keep(outcome)
        got = [offset for run in given.ranges for offset in range(run.first, run.last + 1)]
        assert got == sorted(set(got))
        assert set(got) <= free, f"{sorted(set(got) - free)} cannot be had at {self.now}"
        if self.rules.is_fifo:
            keys = [self.messages[offset].said.key for offset in got if self.messages[offset].said.key]
            assert len(keys) == len(set(keys)), "two of a key at a time"
            self.check_order(got)
        is_all = self.looked == len(self.messages)  # before that it may have to wait
        if is_all and (not self.rules.is_fifo or (lane is None and end == len(self.messages))):
            there = {offset for offset in free if self.surely_due(self.messages[offset])}
            assert len(got) >= min(most, self.most_of(there)), f"{sorted(there - set(got))} were left out"
        for offset in got:
            self.messages[offset].state, self.messages[offset].lease = "out", given.lease_id

    def surely_due(self, message: Message) -> bool:
        """Where every message waits, ten milliseconds are neither here nor there."""
        return message.is_own_due or not self.rules.delay_ms or message.due + 10 <= self.now

    def free(self, end: int, lane: int | None) -> set[int]:
        out = {each.said.key for each in self.messages if each.said.key and each.state in ("out", "waits", "back")}
        found = set()
        for offset, each in enumerate(self.messages[: min(end, self.looked)]):
            if each.state not in ("free", "back", "shaken") or each.due > self.now:
                continue
            if self.rules.is_fifo and each.state == "free" and each.said.key in out:
                continue
            if lane is None or each.place[0] == lane:
                found.add(offset)
        return found

    def most_of(self, free: set[int]) -> int:
        """Of a key only one can be had."""
        if not self.rules.is_fifo:
            return len(free)
        keys = {self.messages[offset].said.key for offset in free} - {None}
        return len(keys) + sum(self.messages[offset].said.key is None for offset in free)

    def check_order(self, got: list[int]) -> None:
        for offset in got:
            mine = self.messages[offset]
            if mine.said.key is None or mine.is_own_due:
                continue
            for other in self.messages[:offset]:
                if other.said.key == mine.said.key and other.place == mine.place and not other.is_own_due:
                    assert other.state == "settled", f"{offset} before {other.said.offset}"

    def settle(self) -> None:
        out = [offset for offset, each in enumerate(self.messages) if each.state == "out"]
        if not out:
            return
        for offset in self.chance.sample(out, min(len(out), self.chance.choice((1, 5, 50)))):
            kind = self.chance.choice(
                (VerdictKind.ACK,) * 4 + (VerdictKind.NACK, VerdictKind.RELEASE, VerdictKind.REJECT)
            )
            delay = self.chance.choice((0, 30))
            change = Change(offset, offset, Verdict(kind, delay))
            message = self.messages[offset]
            self.keep(self.machine.settle(self.now, 0, "q", Receipt(message.lease), [change]))
            if kind in (VerdictKind.ACK, VerdictKind.REJECT):
                message.state = "settled"
            elif delay:
                message.state, message.due = "waits", self.now + delay
            else:
                message.state = "back"

    def wait(self) -> None:
        self.now += self.chance.choice((1, 10, 50, 300))
        self.keep(self.machine.tick(self.now))
        for message in self.messages:
            if message.state == "waits" and message.due <= self.now:
                message.state = "back"

    def purge(self) -> None:
        if self.chance.random() < 0.9:
            return
        before = self.chance.randrange(len(self.messages) + 1)
        self.keep(self.machine.purge(self.now, 0, "q", before))
        for message in self.messages[:before]:
            message.state = "settled"
        for message in self.messages[:before]:
            message.state = "settled"

    def lead_anew(self) -> None:
        """Another broker reads the ledger and the records."""
        if self.chance.random() < 0.8:
            return
        machine = self.make()
        for (each,) in self.entries:
            machine.replay(each, 0, None, self.now)  # type: ignore[arg-type]
        self.machine = machine
        self.keep(machine.led(self.now, 1, len(self.messages)))
        self.look_again()

    def look_again(self) -> None:
        start = next(iter(self.machine.groups)).window.start
        self.looked = 0
        self.lease()
        self.machine.look_from(start)
        self.looked = start
        for _ in range(self.chance.choice((0, 1, 3, 20))):
            self.look(self.chance.choice((1, 50, 500)))

    def trim(self) -> None:
        self.machine.sorting.trim(self.machine.groups)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_leased_is_what_can_be_had(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play(RULES[name], random.Random(f"{name}/{seed}"))


def play(rules: QueueRules, chance: random.Random) -> None:
    trial = Trial(rules, chance)
    steps = [trial.send, trial.lease, trial.lease, trial.settle, trial.settle, trial.wait]
    steps += [trial.purge, trial.trim, trial.look]
    if not rules.delay_ms:
        steps.append(trial.lead_anew)
    for _ in range(STEPS):
        chance.choice(steps)()
