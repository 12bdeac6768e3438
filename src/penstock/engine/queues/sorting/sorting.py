"""What the ledger of a partition knows of the order in which its queues are to give out messages.

As long as no record says anything and no queue asks for more, a queue is read from one end to the other, and this only
knows how far the records were looked at.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.engine.queues.group import Group
from penstock.engine.queues.settings import QueueRules
from penstock.engine.queues.sorting.marks import Marks, Said
from penstock.engine.queues.sorting.picker import Picker

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

    @property
    def end(self) -> int:
        """Behind what was looked at."""
        return _NOTHING if self.marks is None else self.marks.end

    def begin(self, marks: Marks, groups: Iterable[Group]) -> None:
        """Look at the records, from an offset on, in place of what was known."""
        for group in groups:
            group.sort(None)
        self.marks = marks

    def take(
        self, last: int, said: Sequence[Said], published_ms: int, now: int, groups: Iterable[tuple[Group, QueueRules]]
    ) -> None:
        """Offsets up to `last` were looked at; see `Marks.take`."""
        assert self.marks is not None
        for group, rules in groups:
            self._prepare(group, rules)
        self.marks.take(last, said, published_ms, now)

    def reach(self, group: Group, rules: QueueRules, end: int) -> int:
        """How far a group may be given anything: up to `end`, and to what was looked at."""
        if group.name not in self._made():
            return end
        if self.marks is None or not self._prepare(group, rules):
            return _NOTHING
        return min(end, self.marks.end)

    def _prepare(self, group: Group, rules: QueueRules) -> bool:
        """Have a group that needs it picked from in order; False if the records have to be looked at again."""
        marks = self.marks
        if marks is None or group.name not in self._made():
            return False
        if group.window.start < marks.begin:
            self.marks = None
            return False
        if group.picker is not None or (marks.is_plain and not rules.is_fifo and not rules.delay_ms):
            return True
        if rules.delay_ms and marks.end > marks.first:  # when these were published is not known any more
            self.marks = None
            return False
        group.sort(Picker(marks, group.window, rules))
        return True

    # --- time

    def next_deadline(self, groups: Iterable[Group]) -> int | None:
        if self.marks is None:
            return None
        times = [self.marks.next_due()]
        times += [group.picker.next_ripe() for group in groups if group.picker is not None]
        return min((at for at in times if at is not None), default=None)

    def fall_due(self, now: int, groups: Iterable[Group]) -> list[str]:
        """Let be had what was not due until now; the groups that it is for."""
        if self.marks is None:
            return []
        found = self.marks.fall_due(now)
        return [group.name for group in groups if group.picker is not None and (found or group.picker.ripen(now))]

    def trim(self, groups: Iterable[Group]) -> None:
        """Forget what all have settled."""
        if self.marks is not None:
            starts = [group.window.start for group in groups if group.name in self._made()]
            self.marks.trim(min(starts, default=self.marks.begin))
