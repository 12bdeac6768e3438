"""What a follower keeps: what its leader still has, and everything where that is not known."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from penstock.engine import needs
from penstock.engine.needs import LeaderNeeds
from penstock.errors import PenstockError
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.storage.compaction.job import Range
from penstock.storage.compaction.kept_ranges import KeptRanges
from penstock.storage.compaction.sieve import emptied
from penstock.storage.log.needs import Needed


def batch(first: int, count: int, **more: Any) -> bytes:
    return build_batch([(None, b"x", (), 0)] * count, base_offset=first, **more)


def thinned(first: int, count: int, *kept: Range) -> bytes:
    whole = memoryview(batch(first, count))
    left = KeptRanges(kept).sift(decode_header(whole), whole)
    assert left is not None
    return bytes(left.data)


def void(first: int, count: int) -> bytes:
    whole = memoryview(batch(first, count))
    return bytes(emptied(decode_header(whole), whole).data)


class Leader:
    """What a follower hears of it: batches, one answer each."""

    def __init__(self, *batches: bytes, epoch: int = 3) -> None:
        self.batches = batches
        self.follower: Any = SimpleNamespace(name="q-0", is_elsewhere=True, leader_epoch=epoch, opened=self._opened)

    @staticmethod
    def _opened() -> Any:
        async def run(function: Callable[..., Any], *given: Any) -> Any:
            return function(*given)

        return SimpleNamespace(shelf=SimpleNamespace(disk=SimpleNamespace(run=run)))

    def ask(self, first: int, last: int) -> tuple[LeaderNeeds, Needed]:
        asked = LeaderNeeds(self.follower)
        with patch.object(needs, "Cursor", self._cursor):
            return asked, asyncio.run(asked.ask(first, last))

    def _cursor(self, partition: Any, offset: int, **more: Any) -> Any:
        async def read(max_bytes: int, wait_s: float) -> Any:
            data = b"".join(each for each in self.batches if decode_header(each).last_offset >= offset)
            if not data:
                return SimpleNamespace(data=None)
            file = SimpleNamespace(read_at=lambda size, position: data)
            return SimpleNamespace(data=SimpleNamespace(file=file, size=len(data), position=0))

        return SimpleNamespace(next=read)


def test_what_the_leader_has_dropped_is_not_needed() -> None:
    leader = Leader(thinned(0, 100, (7, 7), (90, 91)), batch(1000, 1), batch(2000, 500))
    assert leader.ask(0, 1999)[1] == Needed([(7, 7), (90, 91), (1000, 1000)], 1999)
    assert leader.ask(50, 1500)[1] == Needed([(90, 91), (1000, 1000)], 1500)
    assert leader.ask(200, 900)[1] == Needed([], 900)


def test_what_is_not_known_is_needed() -> None:
    assert Leader().ask(0, 99)[1] == Needed([(0, 99)], 99)
    assert Leader(batch(0, 5)).ask(10, 99)[1] == Needed([(10, 99)], 99), "the leader has heard of nothing there"
    assert Leader(thinned(0, 100, (3, 3))).ask(0, 400)[1] == Needed([(3, 3)], 99), "as far as it told"


def test_a_segment_that_was_not_thinned_is_needed_whole() -> None:
    assert Leader(batch(0, 30), batch(1000, 1)).ask(0, 99)[1] == Needed([(0, 99)], 99)


def test_a_batch_without_records_may_stand_for_lost_ones() -> None:
    leader = Leader(void(10, 5), batch(500, 1, control=True), batch(900, 1))
    assert leader.ask(0, 800)[1] == Needed([(10, 14), (500, 500)], 800)


def test_another_leader_may_have_more() -> None:
    leader = Leader(batch(500, 1))
    asked, _ = leader.ask(0, 99)
    assert asked.ask_now(0, 99) == Needed([], 99)
    leader.follower.leader_epoch += 1
    assert asked.ask_now(0, 99) == Needed([(0, 99)], 99)


def test_who_leads_asks_nobody() -> None:
    leader = Leader(batch(500, 1))
    leader.follower.is_elsewhere = False
    with pytest.raises(PenstockError):
        leader.ask(0, 99)
    assert LeaderNeeds(cast(Any, leader.follower)).ask_now(0, 99) == Needed([(0, 99)], 99)
