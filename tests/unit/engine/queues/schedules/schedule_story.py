"""Schedules as stories tell of them: lines of `tests/scenarios/schedule`, and what comes of each."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.unit.engine.queues.story_words import Words

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.schedules.cron import Cron
from penstock.engine.queues.schedules.entries import EntryKind, Round, ScheduleCodec
from penstock.engine.queues.schedules.machine import ScheduleMachine, Standing
from penstock.engine.queues.schedules.schedule import Definition, Progress
from penstock.errors import PenstockError
from penstock.quantities import parse_duration_ms

CODEC = ScheduleCodec()
TO = "asked"
GROUP = "jobs"
BEGIN_MS = int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp() * 1000)


def crons(expression: str, zone: str) -> Cron | None:
    from zoneinfo import ZoneInfo

    return None if zone == "Mars/Olympus" else Cron(expression, ZoneInfo(zone))


def at(moment_ms: int | None) -> str:
    if moment_ms is None:
        return "never"
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return f"{moment:%m-%d %H:%M}" + (f":{moment:%S}" if moment.second else "")


class Story:
    def __init__(self) -> None:
        self.now = BEGIN_MS
        self.log: list[Entry] = []
        self.told: list[str] = []
        self.published: dict[int, dict[tuple[int, int], Round]] = {}
        """What the log of each partition has taken, by the producer's numbers."""
        self.sent: list[str] = []
        """What was published, in the order in which that was."""
        self.producers = 0
        self.machine = self.make_machine(())

    def make_machine(self, kept: Sequence[Entry]) -> ScheduleMachine:
        machine = ScheduleMachine(crons)
        for entry in kept:
            machine.replay(entry, -1, None, self.now)
        machine.plan(list(machine.unplanned))
        return machine

    def tell(self, line: str) -> list[str]:
        """What comes of a line."""
        self.told = []
        verb, *words = line.split()
        try:
            if verb.startswith(("+", "-")):
                self.now += parse_duration_ms(verb[1:]) * (1 if verb[0] == "+" else -1)
                self.told.append(f"it is {at(self.now)}")
            else:
                getattr(self, f"do_{verb}")(Words.of(words))
        except PenstockError as error:
            self.told.append(f"refused: {error.code.name}: {error}")
        self.machine.plan(list(self.machine.unplanned))
        self.check()
        return self.told

    def check(self) -> None:
        """What is kept, the last of each key alone, and the state as it would be saved, each tell the whole story."""
        now = self.shown(self.machine)
        assert self.shown(self.make_machine(self.log)) == now, "the entries do not tell the whole story"
        last = {(entry.kind, entry.key): entry for entry in self.log}
        compacted = [entry for entry in self.log if last[entry.kind, entry.key] is entry]
        assert self.shown(self.make_machine(compacted)) == now, "the compacted log does not tell the whole story"
        saved = [entry for entry, _ in self.machine.dump()]
        assert self.shown(self.make_machine(saved)) == now, "the saved state does not tell the whole story"

    def shown(self, machine: ScheduleMachine) -> Any:
        entries = set()
        for entry, _ in machine.dump():
            assert CODEC.decode(*CODEC.encode(entry)) == entry
            entries.add(entry)
        return entries, [machine.standing(GROUP, name) for name in machine.names(GROUP)]

    def keep(self, outcome: Outcome) -> Any:
        self.log += outcome.records
        for entry in outcome.records:
            self.told.append(f"kept: {self.format(entry)}")
        for reply in outcome.replies:
            if isinstance(reply.answer, PenstockError):
                raise reply.answer
            return reply.answer
        return None

    def format(self, entry: Entry) -> str:
        (number,), value = entry.key, entry.value
        if isinstance(value, Definition):
            return f"{value.name} is number {number}: {value.cron} in {value.zone}, made {at(value.made_ms)}"
        if isinstance(value, Progress):
            flags = "".join([", paused"] * value.is_paused + [", removed"] * value.is_removed)
            last = "" if value.planned_ms is None else f", fired for {at(value.planned_ms)} at {at(value.fired_ms)}"
            return f"number {number} goes on after {at(value.base_ms)}{last}{flags}"
        if isinstance(value, Round):
            fires = ", ".join(f"number {fire.number} for {at(fire.planned_ms)}" for fire in value.fires)
            return f"partition {number}: producer {value.producer_id} from {value.sequence}: {fires or 'nothing'}"
        return f"number {number} has no {EntryKind(entry.kind).name.lower()} any more"

    def told_next(self, standing: Standing) -> None:
        times = ", ".join(map(at, standing.next_ms)) or "none"
        self.told.append(f"next: {times}")

    # --- what people do

    def do_add(self, words: Words) -> None:
        name, cron = words.plain[0], words.options.get("cron", "*_*_*_*_*").replace("_", " ")
        zone = words.options.get("zone", "UTC")
        definition = Definition(GROUP, name, cron, zone, None, b"x", (), self.now)
        self.told_next(self.keep(self.machine.add(TO, definition)))

    def do_pause(self, words: Words) -> None:
        self.told_next(self.keep(self.machine.pause(TO, GROUP, words.plain[0])))

    def do_resume(self, words: Words) -> None:
        self.told_next(self.keep(self.machine.resume(self.now, TO, GROUP, words.plain[0])))

    def do_remove(self, words: Words) -> None:
        if self.keep(self.machine.remove(TO, GROUP, words.plain[0])):
            self.told.append("a message of it is under way")

    def do_forget(self, words: Words) -> None:
        self.told.append(f"removed {self.keep(self.machine.forget(TO, GROUP))}")

    def do_show(self, words: Words) -> None:
        for name in self.machine.names(GROUP):
            standing = self.machine.standing(GROUP, name)
            state = "paused" if standing.progress.is_paused else at(standing.next_ms[0] if standing.next_ms else None)
            self.told.append(f"{name}: next {state}, last {at(standing.progress.planned_ms)}")
        for partition, noted in self.machine.rounds():
            self.told.append(f"partition {partition}: {len(noted.fires)} under way")

    # --- what the broker does

    def do_note(self, words: Words) -> None:
        """Everything that is ready, for one partition."""
        partition = words.number(0)
        self.machine.come(self.now, 100)
        ready = [each.number for each in self.machine.ready]
        self.machine.come_again(self.now, ready)
        self.producers += 1
        self.keep(self.machine.note(TO, partition, self.producers, ready))

    def do_publish(self, words: Words) -> None:
        """As the log of the partition does: what it has taken it does not take again."""
        partition = words.number(0)
        noted = self.machine.round(partition)
        if not noted.fires:
            self.told.append("there is nothing to publish")
            return
        taken = self.published.setdefault(partition, {})
        if (noted.producer_id, noted.sequence) in taken:
            assert taken[noted.producer_id, noted.sequence] == noted, "another batch of the same number"
            self.told.append("there already")
            return
        taken[noted.producer_id, noted.sequence] = noted
        for number, planned_ms in noted.fires:
            name = self.machine.get(number).definition.name
            fire = f"{name} for {at(planned_ms)}"
            assert fire not in self.sent, f"{fire}, again"
            self.sent.append(fire)
            self.told.append(f"published {fire}")

    def do_done(self, words: Words) -> None:
        partition = words.number(0)
        self.keep(self.machine.done(self.now, TO, partition, self.machine.round(partition)))

    def do_undo(self, words: Words) -> None:
        partition = words.number(0)
        self.keep(self.machine.undo(TO, partition, self.machine.round(partition)))

    def do_pass(self, words: Words) -> None:
        self.machine.come(self.now, 100)
        for each in self.machine.ready:
            if each.definition.name == words.plain[0]:
                self.keep(self.machine.pass_over(each.number))

    def do_fire(self, words: Words) -> None:
        """All of it, in short: only what is published is told."""
        for line in ("note", "publish", "done"):
            getattr(self, f"do_{line}")(words)
        self.told = [line for line in self.told if line.startswith("published")]

    def do_restart(self, words: Words) -> None:
        """Or a failover, by which the last entries are lost that nobody was told of."""
        lost = int(words.options.get("lost", "0"))
        del self.log[len(self.log) - lost :]
        self.machine = self.make_machine(self.log)
