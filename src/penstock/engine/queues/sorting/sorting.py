"""What the ledger of a partition knows of the order in which its queues are to give out messages.

As long as no record says anything and no queue asks for more, a queue is read from one end to the other, and this only
knows how far the records were looked at.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.engine.queues.group import Group
from penstock.engine.queues.settings import QueueRules
from penstock.engine.queues.sorting.delayed import Ripening
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.queues.sorting.marks import LANE_NAMES, Marks, Said
from penstock.engine.queues.sorting.picker import Picker
from penstock.engine.queues.window import READY

_NOTHING = 0


class Sorting:
    """Of one ledger.

    Args:
        made: the queues that were made as such. Groups of share clients alone are none: they get what is there, in
            its order, as with Kafka.
    """

    def __init__(self, made: Callable[[], Collection[str]] = tuple) -> None:
        self._made = made
        self.marks: Marks | None = None
        self.counted_to: int | None = None
        """Behind what was looked at since this broker leads, also if it is looked at again; None before."""
        self._arrived = [0] * len(LANE_NAMES)
        self._ripening: dict[str, Ripening] = {}
        """Of the groups in which every message waits."""

    @property
    def end(self) -> int:
        """Behind what was looked at."""
        return _NOTHING if self.marks is None else self.marks.end

    def begin(self, marks: Marks, groups: Iterable[tuple[Group, QueueRules]]) -> None:
        """Look at the records, from an offset on, in place of what was known."""
        self.marks = marks
        marks.arrived = self._arrived  # it goes on where it was
        self._ripening.clear()
        for group, rules in groups:
            group.sort(None)
            if rules.delay_ms:
                self._ripening[group.name] = Ripening(rules.delay_ms, group.window.start)

    def take(self, last: int, said: Sequence[Said], published_ms: int, now: int) -> None:
        """Offsets up to `last` were looked at; see `Marks.take`."""
        assert self.marks is not None
        self.marks.take(last, said, now)
        self.counted_to = self.marks.end
        for ripening in self._ripening.values():
            ripening.add(last + 1, published_ms)

    def reach(self, group: Group, rules: QueueRules, end: int) -> int:
        """How far a group may be given anything: up to `end`, and to what was looked at."""
        if group.name not in self._made():
            return end
        if self.marks is None or not self._prepare(group, rules):
            return _NOTHING
        return min(end, self.marks.end)

    def sort_in(self, group: Group, rules: QueueRules) -> None:
        """Have a group that nobody has come for yet be told of as it would be given out, if its records are known."""
        marks = self.marks
        is_known = marks is not None and group.window.start >= marks.begin
        if is_known and bool(rules.delay_ms) == (group.name in self._ripening):
            self._prepare(group, rules)

    def _prepare(self, group: Group, rules: QueueRules) -> bool:
        """Have a group that needs it picked from in order; False if the records have to be looked at again."""
        marks = self.marks
        if marks is None or group.name not in self._made():
            return False
        if group.window.start < marks.begin or bool(rules.delay_ms) != (group.name in self._ripening):
            self.marks = None
            return False
        if group.picker is not None:
            return True
        if marks.end < group.window.next:  # what comes back of it, or was passed over, may be anything
            return False
        if marks.is_plain and not rules.is_fifo and not rules.delay_ms:
            return True
        group.sort(Picker(marks, group.window, rules, self._ripening.get(group.name)))
        return True

    # --- time

    def next_deadline(self) -> int | None:
        if self.marks is None:
            return None
        times = [self.marks.next_due()]
        times += [ripening.next() for ripening in self._ripening.values()]
        return min((at for at in times if at is not None), default=None)

    def fall_due(self, now: int, groups: Iterable[Group]) -> list[str]:
        """Let be had what was not due until now; the groups that it is for."""
        if self.marks is None:
            return []
        found = self.marks.fall_due(now)
        ripe = [name for name, ripening in self._ripening.items() if ripening.ripen(now)]
        return [group.name for group in groups if found and group.picker is not None] + ripe

    # --- what is not due yet

    def waiting(self, group: Group, after: Waiting, most: int) -> list[Waiting]:
        """What of a group is due next, behind a moment and offset."""
        found: list[Waiting] = []
        while self.marks is not None and len(found) < most:
            page = self.marks.later.browse(after, most)
            found += [each for each in page if self.is_waiting(group, each.offset)]
            if len(page) < most:
                break
            after = page[-1]
        return found[:most]

    @staticmethod
    def is_waiting(group: Group, offset: int) -> bool:
        """Whether nobody has had or settled it, given that it is not due yet."""
        window = group.window
        return offset >= window.start and window.state_of(offset) == READY and window.counts_of(offset) == (0, 0)

    def trim(self, groups: Iterable[Group]) -> None:
        """Forget what all have settled."""
        if self.marks is None:
            return
        made = [group for group in groups if group.name in self._made()]
        self.marks.trim(min((group.window.start for group in made), default=self.marks.begin))
        if all(group.picker is not None for group in made):
            self.marks.forget_fallen()
