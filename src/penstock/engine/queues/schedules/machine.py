"""The schedules of a topic's queues, and the messages of theirs that are under way. A pure state machine.

    waits  ->  ready: its time has come  ->  noted: which batch of which producer  ->  done: the next one is planned
                                             (kept, before anything is sent)           (kept, when it is published)

What is noted keeps what it needs: a schedule that is removed meanwhile is gone for everybody, and its definition goes
when that batch is there. A time that has passed unnoticed is made up for by the last one alone.

Times are of the wall clock, and come with each step; what has fired once does not fire again if that clock goes back.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, cast

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.coordination.outcome import NOTHING, Outcome, Reply, Token, refused
from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.schedules.cron import Cron, Crons
from penstock.engine.queues.schedules.entries import EntryKind, Fire, Round, Value
from penstock.engine.queues.schedules.schedule import (
    MOST_BYTES_OF_TOPIC,
    MOST_OF_QUEUE,
    MOST_OF_TOPIC,
    Definition,
    Progress,
    Schedule,
)
from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean

Change = Callable[[Progress], Progress]
NEXT_TOLD: Final = 3
_LEAST_APART_MS: Final = 60_000
_NO_PRODUCER: Final = -1
_LAST_SEQUENCE: Final = 0x7FFFFFFF
_NO_ROUND: Final = Round(_NO_PRODUCER, 0, ())


class Standing(NamedTuple):
    """How a schedule stands.

    Attributes:
    next_ms: the next times; none while it is paused, or if its zone is not known here.
    """

    definition: Definition
    progress: Progress
    next_ms: tuple[int, ...]
    knows_zone: bool


class ScheduleMachine:
    """Args:
    crons: reads an expression in a zone.
    """

    def __init__(self, crons: Crons) -> None:
        self._crons = crons
        self._by_number: dict[int, Schedule] = {}
        self._groups: dict[str, dict[str, Schedule]] = {}
        """By group and name; without those that were removed."""
        self._next_number = 1
        self._size_bytes = 0
        self._rounds: dict[int, Round] = {}
        """The last one of each partition."""
        self._under_way: set[int] = set()
        """Schedules in rounds that are not done."""
        self._unplanned: dict[int, None] = {}
        """Schedules whose next time is to be looked for."""
        self._deadlines: Deadlines[int] = Deadlines()
        self._ready: dict[int, None] = {}
        """Schedules whose time has come, in that order."""

    # --- looking

    @property
    def has_any(self) -> bool:
        return bool(self._by_number)

    @property
    def unplanned(self) -> Collection[int]:
        """Schedules whose next time is to be looked for: see `plan`."""
        return self._unplanned.keys()

    @property
    def zones(self) -> set[str]:
        """What has to be known before any step is taken: the zones of schedules that are not planned yet."""
        return {self._by_number[number].definition.zone for number in self._unplanned}

    @property
    def ready(self) -> list[Schedule]:
        """In the order in which their times came."""
        return [self._by_number[number] for number in self._ready]

    @property
    def next_ms(self) -> int | None:
        """When the next time comes."""
        return self._deadlines.next()

    def get(self, number: int) -> Schedule:
        return self._by_number[number]

    def round(self, partition: int) -> Round:
        """The last one of a partition."""
        return self._rounds.get(partition, _NO_ROUND)

    def rounds(self) -> list[tuple[int, Round]]:
        """Those that are under way, by partition."""
        return [(partition, each) for partition, each in self._rounds.items() if each.fires]

    def names(self, group: str) -> list[str]:
        """Of a queue's schedules, in their order."""
        return sorted(self._groups.get(group, ()))

    def standing(self, group: str, name: str) -> Standing:
        """Raises PenstockError NOT_FOUND."""
        schedule = self._find(group, name)
        if schedule.number in self._unplanned:
            self._plan(schedule)
        times: list[int] = []
        if schedule.cron is not None and not schedule.progress.is_paused:
            at: int | None = schedule.progress.base_ms
            while at is not None and len(times) < NEXT_TOLD and (at := schedule.cron.next_after(at)) is not None:
                times.append(at)
        return Standing(schedule.definition, schedule.progress, tuple(times), schedule.cron is not None)

    # --- what people do

    def add(self, to: Token, definition: Definition) -> Outcome:
        """Replies how it stands."""
        group, name = definition.group, definition.name
        try:
            if name in self._groups.get(group, {}):
                raise PenstockError(
                    Code.EXISTS,
                    f"there is a schedule {name!r} already",
                    help="remove it first, or choose another name",
                )
            self._check_room(definition)
            cron = self._crons(definition.cron, definition.zone)
            if cron is None or cron.next_after(definition.made_ms) is None:
                raise PenstockError(
                    Code.INVALID_SCHEDULE,
                    f"cron expression {definition.cron!r} in {definition.zone} does not fire in the next fifty years",
                )
        except PenstockError as error:
            return refused(to, error)
        schedule = self._make(self._next_number, definition._replace(cron=cron.text))
        self._plan(schedule)
        kept = Entry(EntryKind.DEFINED, (schedule.number,), schedule.definition)
        return Outcome((kept,), (Reply(to, self.standing(group, name)),))

    def _check_room(self, definition: Definition) -> None:
        count = len(self._groups.get(definition.group, ()))
        if count >= MOST_OF_QUEUE:
            what = f"the queue has {count} schedules, which is the most"
        elif len(self._by_number) >= MOST_OF_TOPIC:
            what = f"the queues of this topic have {len(self._by_number)} schedules, which is the most"
        elif self._size_bytes + definition.size_bytes > MOST_BYTES_OF_TOPIC:
            what = (
                f"the schedules of this topic have messages of {self._size_bytes} bytes, and {definition.size_bytes} "
                f"more are too many; allowed: {MOST_BYTES_OF_TOPIC}"
            )
        else:
            return
        raise PenstockError(Code.LIMIT_EXCEEDED, what, help="remove those that are not needed any more")

    def pause(self, to: Token, group: str, name: str) -> Outcome:
        """Nothing is planned until it is resumed, and nothing is made up for then."""
        return self._change(to, group, name, lambda progress: progress._replace(is_paused=True))

    def resume(self, now_ms: int, to: Token, group: str, name: str) -> Outcome:
        def resumed(progress: Progress) -> Progress:
            if not progress.is_paused:
                return progress
            return progress._replace(is_paused=False, base_ms=max(progress.base_ms, now_ms))

        return self._change(to, group, name, resumed)

    def _change(self, to: Token, group: str, name: str, change: Change) -> Outcome:
        """Replies how it stands then."""
        try:
            schedule = self._find(group, name)
        except PenstockError as error:
            return refused(to, error)
        before, schedule.progress = schedule.progress, change(schedule.progress)
        self._plan(schedule)
        kept = () if schedule.progress == before else (self._progress(schedule),)
        return Outcome(kept, (Reply(to, self.standing(group, name)),))

    def remove(self, to: Token, group: str, name: str) -> Outcome:
        """Replies whether a message of it is under way: that one still comes."""
        try:
            schedule = self._find(group, name)
        except PenstockError as error:
            return refused(to, error)
        return Outcome(self._remove(schedule), (Reply(to, schedule.number in self._under_way),))

    def forget(self, to: Token, group: str) -> Outcome:
        """Remove all of a queue. Replies how many."""
        gone = list(self._groups.get(group, {}).values())
        return Outcome([entry for each in gone for entry in self._remove(each)], (Reply(to, len(gone)),))

    def _remove(self, schedule: Schedule) -> Sequence[Entry]:
        if schedule.number not in self._under_way:
            return self._drop(schedule)
        schedule.progress = schedule.progress._replace(is_removed=True)
        self._hide(schedule)
        return (self._progress(schedule),)

    # --- firing

    def plan(self, numbers: Iterable[int]) -> list[Schedule]:
        """Look for the next times of some. Returns those whose zone is not known."""
        schedules = [self._by_number[number] for number in numbers if number in self._unplanned]
        for schedule in schedules:
            self._plan(schedule)
        return [each for each in schedules if each.cron is None]

    def come(self, now_ms: int, most: int) -> bool:
        """Let be ready whose time has come; whether there may be more."""
        for _ in range(most):
            next_ms, number = self._deadlines.next(), self._deadlines.pop_due(now_ms)
            if next_ms is None or number is None:
                return False
            self._by_number[number].due_ms = next_ms
            self._ready[number] = None
            self.come_again(now_ms, [number])
        return True

    def is_late(self, number: int, now_ms: int) -> bool:
        """Whether it is ready for so long that another of its times may have come."""
        return number in self._ready and now_ms - self._by_number[number].due_ms >= _LEAST_APART_MS

    def come_again(self, now_ms: int, numbers: Iterable[int]) -> None:
        """Of times that have come since it was ready, the last one counts."""
        for number in numbers:
            if number in self._ready:
                schedule = self._by_number[number]
                assert schedule.cron is not None
                schedule.due_ms = schedule.cron.latest(schedule.due_ms, now_ms)

    def note(self, to: Token, partition: int, producer_id: int, numbers: Sequence[int]) -> Outcome:
        """Note what is about to be published of what is ready.

        Args:
            producer_id: where the partition's last round has none that can go on.
        """
        last = self.round(partition)
        numbers = [number for number in numbers if number in self._ready]
        if last.fires or not numbers:
            return Outcome(replies=(Reply(to, None),))
        if last.producer_id == _NO_PRODUCER:
            last = Round(producer_id, 0, ())
        noted = last._replace(fires=tuple([Fire(number, self._by_number[number].due_ms) for number in numbers]))
        for number in numbers:
            del self._ready[number]
        self._under_way.update(numbers)
        self._rounds[partition] = noted
        return Outcome((Entry(EntryKind.ROUND, (partition,), noted),), (Reply(to, None),))

    def done(self, now_ms: int, to: Token, partition: int, noted: Round) -> Outcome:
        """It is published."""
        if self.round(partition) != noted:
            return Outcome(replies=(Reply(to, None),))
        sequence = (noted.sequence + len(noted.fires)) & _LAST_SEQUENCE
        kept = [self._end(partition, Round(noted.producer_id, sequence, ()))]
        for number, planned_ms in noted.fires:
            schedule = self._by_number[number]
            base_ms = max(schedule.progress.base_ms, planned_ms)
            schedule.progress = schedule.progress._replace(base_ms=base_ms, planned_ms=planned_ms, fired_ms=now_ms)
            kept += self._go_on(schedule) or [self._progress(schedule)]
        return Outcome(kept, (Reply(to, None),))

    def undo(self, to: Token, partition: int, noted: Round) -> Outcome:
        """It cannot be published any more as it was noted, and was not."""
        if self.round(partition) != noted:
            return Outcome(replies=(Reply(to, None),))
        kept = [self._end(partition, _NO_ROUND)]
        for number, _ in noted.fires:
            kept += self._go_on(self._by_number[number])
        return Outcome(kept, (Reply(to, None),))

    def _go_on(self, schedule: Schedule) -> Sequence[Entry]:
        """Its message is under way no more: it waits for another time, or is gone."""
        if schedule.progress.is_removed:
            return self._drop(schedule)
        self._unplanned[schedule.number] = None
        return ()

    def pass_over(self, number: int) -> Outcome:
        """Its message cannot be published at all: it waits for the next time."""
        if number not in self._ready:
            return NOTHING
        schedule = self._by_number[number]
        schedule.progress = schedule.progress._replace(base_ms=schedule.due_ms)
        self._plan(schedule)
        return Outcome((self._progress(schedule),))

    # --- keeping

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        (number,), value = entry.key, cast(Value | None, entry.value)
        if isinstance(value, Round):
            self._end(number, value)
            self._under_way.update(fire.number for fire in value.fires)
            return
        schedule = self._by_number.get(number)
        if isinstance(value, Definition):
            if schedule is not None:
                self._drop(schedule)
            self._make(number, value)
        elif isinstance(value, Progress) and schedule is not None:
            schedule.progress = value
            if value.is_removed:
                self._hide(schedule)
        elif value is None and entry.kind == EntryKind.DEFINED and schedule is not None:
            self._drop(schedule)

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """Nobody writes here in a transaction."""

    def dump(self) -> Iterable[tuple[Entry, int | None]]:
        entries = [Entry(EntryKind.ROUND, (partition,), each) for partition, each in self._rounds.items()]
        for number, schedule in self._by_number.items():
            entries.append(Entry(EntryKind.DEFINED, (number,), schedule.definition))
            entries.append(self._progress(schedule))
        return [(entry, None) for entry in entries]

    def next_deadline(self) -> int | None:
        """None: `firing` goes by the wall clock, and a shard by one that never jumps."""
        return None

    def tick(self, now: int) -> Outcome:
        return NOTHING

    # --- inside

    def _find(self, group: str, name: str) -> Schedule:
        found = self._groups.get(group, {}).get(name)
        if found is None:
            known = self._groups.get(group, {})
            raise PenstockError(
                Code.NOT_FOUND,
                f"there is no schedule {name[:60]!r}",
                help=did_you_mean(name, known, "'penstock queue schedule list QUEUE' shows those there are"),
            )
        return found

    def _make(self, number: int, definition: Definition) -> Schedule:
        schedule = self._by_number[number] = Schedule(number, definition)
        self._groups.setdefault(definition.group, {})[definition.name] = schedule
        self._next_number = max(self._next_number, number + 1)
        self._size_bytes += definition.size_bytes
        self._unplanned[number] = None
        return schedule

    def _plan(self, schedule: Schedule) -> None:
        """Look for its next time, if it is to have one."""
        number, progress = schedule.number, schedule.progress
        self._unplanned.pop(number, None)
        self._ready.pop(number, None)
        if schedule.cron is None:
            schedule.cron = self._read(schedule.definition)
        is_idle = progress.is_paused or progress.is_removed or number in self._under_way
        next_ms = None if is_idle or schedule.cron is None else schedule.cron.next_after(progress.base_ms)
        self._deadlines.set(number, next_ms)

    def _read(self, definition: Definition) -> Cron | None:
        """None if this release, or this machine's time zones, know no such thing."""
        try:
            return self._crons(definition.cron, definition.zone)
        except PenstockError:
            return None

    def _end(self, partition: int, last: Round) -> Entry:
        """Of a partition's round nothing is under way any more; another takes its place."""
        self._under_way.difference_update(fire.number for fire in self.round(partition).fires)
        self._rounds[partition] = last
        return Entry(EntryKind.ROUND, (partition,), last)

    def _hide(self, schedule: Schedule) -> None:
        """Nobody finds it any more, and it plans nothing."""
        definition = schedule.definition
        names = self._groups.get(definition.group, {})
        if names.get(definition.name) is schedule:
            del names[definition.name]
            if not names:
                del self._groups[definition.group]
        self._unplanned.pop(schedule.number, None)
        self._ready.pop(schedule.number, None)
        self._deadlines.set(schedule.number, None)

    def _drop(self, schedule: Schedule) -> Sequence[Entry]:
        self._hide(schedule)
        del self._by_number[schedule.number]
        self._size_bytes -= schedule.definition.size_bytes
        return [Entry(kind, (schedule.number,), None) for kind in (EntryKind.DEFINED, EntryKind.PROGRESS)]

    @staticmethod
    def _progress(schedule: Schedule) -> Entry:
        return Entry(EntryKind.PROGRESS, (schedule.number,), schedule.progress)
