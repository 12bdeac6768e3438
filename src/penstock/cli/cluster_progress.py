"""How far moves are, and waiting for them: bars on a terminal, now and then a line elsewhere.

Ctrl+C ends the waiting and nothing else: brokers go on with a move whoever watches.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.cli.cluster_patience import Patience
from penstock.cli.cluster_view import NOBODY, Partition, Picture, Place, View
from penstock.cli.output import count_of, format_bytes, note, note_none, print_table

_LINE_EVERY_S: Final = 10.0
_WIDTH: Final = 20
GOES_ON: Final = (
    "the move goes on. How far it is: 'penstock cluster reassign --status --watch'; "
    "to take it back: 'penstock cluster reassign --cancel'"
)


class Copying(NamedTuple):
    """One partition on its way: bytes that are where they shall be, of all that go there."""

    partition: Partition
    copied_bytes: int
    total_bytes: int


def measure(picture: Picture) -> list[Copying]:
    """Every move there is."""
    return [_measure(picture, each) for each in picture.moving]


def _measure(picture: Picture, partition: Partition) -> Copying:
    size = picture.size_of(partition)
    copied = 0
    for broker_id in partition.adding:
        broker = picture.brokers.get(broker_id)
        has = broker.sizes.get(partition.place, 0) if broker is not None else 0
        copied += size if broker_id in partition.isr else min(has, size)
    return Copying(partition, copied, size * len(partition.adding))


def left_to_copy(picture: Picture) -> Counter[int]:
    """Bytes that each broker will still get by the moves there are."""
    left: Counter[int] = Counter()
    for each in picture.moving:
        size = picture.size_of(each)
        for broker_id in each.adding:
            if broker_id not in each.isr:
                broker = picture.brokers.get(broker_id)
                left[broker_id] += max(size - (broker.sizes.get(each.place, 0) if broker is not None else 0), 0)
    return left


def format_moves(moves: Iterable[Copying]) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.index,
            "replicas": list(each.partition.replicas),
            "adding": list(each.partition.adding),
            "removing": list(each.partition.removing),
            "copied_bytes": each.copied_bytes,
            "total_bytes": each.total_bytes,
        }
        for each in moves
    ]


def print_moves(rows: list[dict[str, Any]]) -> None:
    if not rows:
        note_none("partitions on their way")
        return
    cells = [
        [
            f"{row['topic']}-{row['partition']}",
            ",".join(map(str, row["adding"])) or "-",
            ",".join(map(str, row["removing"])) or "-",
            draw_bar(row["copied_bytes"], row["total_bytes"]),
            f"{format_bytes(row['copied_bytes'])} of {format_bytes(row['total_bytes'])}",
        ]
        for row in rows
    ]
    print_table(cells, ["partition", "to", "from", "progress", "copied"])


def draw_bar(done: int, total: int) -> str:
    share = 1.0 if total <= 0 else min(done / total, 1.0)
    filled = int(share * _WIDTH)
    return f"{'█' * filled}{'░' * (_WIDTH - filled)} {share:4.0%}"


@dataclass(slots=True)
class Account:
    """Moves as they were when the waiting began, and what is left of them."""

    places: Collection[Place]
    sizes: dict[Place, int]
    """Bytes to copy, as last seen: partitions grow meanwhile."""
    copied_bytes: int = 0
    left: int = 0

    def take(self, found: Mapping[Place, Copying]) -> None:
        mine = {place: found[place] for place in self.places if place in found}
        self.sizes |= {place: each.total_bytes for place, each in mine.items()}
        arrived = sum(size for place, size in self.sizes.items() if place not in mine)
        self.copied_bytes = arrived + sum(each.copied_bytes for each in mine.values())
        self.left = len(mine)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())

    def __str__(self) -> str:
        done = len(self.places) - self.left
        return (
            f"{done:,} of {count_of(len(self.places), 'partition')}, "
            f"{format_bytes(self.copied_bytes)} of {format_bytes(self.total_bytes)}"
        )


def wait_for_moves(
    view: View, sizes: Mapping[Place, int], label: str, patience: Patience | None = None, otherwise: str = GOES_ON
) -> None:
    """Until none of these partitions is on its way any more. Raises `GaveUp` when the time is up.

    Args:
        sizes: bytes to copy for each of them, as planned.
        otherwise: what to know when the time is up.
    """
    account = Account(tuple(sizes), dict(sizes), left=len(sizes))
    wait = (patience or Patience()).wait(label, otherwise)
    with _bar(label) as draw, goes_on():
        waiting_for: set[int] = set()
        for picture in wait.pictures(view.fetch):
            account.take({each.partition.place: each for each in measure(picture)})
            waiting_for = _tell_away(picture, account, waiting_for)
            draw(account)
            if not account.left:
                return
            wait.see((account.left, account.copied_bytes), partial(_explain, view, picture, account.places))


def _explain(view: View, picture: Picture, places: Collection[Place]) -> str:
    """Why moves get no further, as far as it can be seen."""
    mine = [each for each in picture.moving if each.place in places]
    reasons = why_nobody_decides(view, picture)
    if leaderless := [each.name for each in mine if each.leader == NOBODY]:
        reasons.append(f"nobody leads {list_names(leaderless)}")
    targets = sorted({broker_id for each in mine for broker_id in each.adding if broker_id not in each.isr})
    for broker in (picture.brokers[each] for each in targets):
        if not broker.is_up:
            reasons.append(f"broker {broker.id} is not running")
        elif not broker.answers:
            reasons.append(f"broker {broker.id} does not answer")
        elif broker.throttle:
            reasons.append(f"broker {broker.id} may copy no more than {format_bytes(broker.throttle)} a second")
    return (
        "; ".join(reasons) or f"{list_names([each.name for each in mine])} on the way, and the brokers' logs say more"
    )


def why_nobody_decides(view: View, picture: Picture) -> list[str]:
    reasons = [] if view.does_store_answer() else ["the metadata store does not answer"]
    return [*reasons, "there is no controller"] if picture.controller == NOBODY else reasons


def list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _tell_away(picture: Picture, account: Account, told: set[int]) -> set[int]:
    """Name brokers that a move waits for, once each time they go."""
    away = {
        broker_id
        for each in picture.moving
        if each.place in account.places
        for broker_id in each.adding
        if not picture.brokers[broker_id].is_up
    }
    for broker_id in sorted(away - told):
        note(f"broker {broker_id} is not running; what moves to it waits until it is")
    return away


@contextmanager
def goes_on() -> Iterator[None]:
    """Says, after Ctrl+C, that a move does not end with the command that started it."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"\n{GOES_ON}")
        raise


@contextmanager
def _bar(label: str) -> Iterator[Callable[[Account], None]]:
    if not sys.stderr.isatty():
        yield _Lines(label)
        return
    import os

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(label, total=None, done="")

        def draw(account: Account) -> None:
            done = f"{len(account.places) - account.left:,}/{len(account.places):,} partitions"
            bars.update(task, completed=account.copied_bytes, total=max(account.total_bytes, 1), done=done)

        yield draw


class _Lines:
    """For a log: a line every so often, if anything has changed."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last = ""
        self._at = time.monotonic()

    def __call__(self, account: Account) -> None:
        if time.monotonic() - self._at >= _LINE_EVERY_S and str(account) != self._last:
            self._last, self._at = str(account), time.monotonic()
            note(f"{self._label}: {account}")
