"""Turns for slow work: one step, then turns of the loop for others, in the order of asking."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.turns import BUSY_S, FREE_TURNS, REST_S, Turns


async def test_between_two_steps_the_loop_comes_round_for_others() -> None:
    turns, rounds = Turns(), 0
    steps: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.next()
            steps.append((name, rounds))

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    while not all(task.done() for task in tasks):
        rounds += 1
        await asyncio.sleep(0)
    assert {name for name, _ in steps[:4]} == set("abc")  # nobody has a third step before all had one
    assert len(steps) == 9
    assert all(later - turn > FREE_TURNS for (_, turn), (_, later) in pairwise(steps))


async def test_who_comes_alone_does_not_wait() -> None:
    turns = Turns()
    assert turns.take()
    for _ in range(FREE_TURNS + 1):
        assert not turns.take()
        await asyncio.sleep(0)
    assert turns.take()


async def test_who_gives_up_is_passed_over() -> None:
    turns = Turns()
    _, first, second = tasks = [asyncio.create_task(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, False, False]
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()


class Rests:
    """A loop's clock that only steps and rests move, and the rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 5.0
        self.taken_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(self._loop, "time", lambda: self.now_s)
        monkeypatch.setattr(self._loop, "call_later", self._rest)

    def _rest(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.taken_s.append(delay_s)
        self.now_s += delay_s
        self._loop.call_soon(callback)


async def test_steps_without_end_leave_threads_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, rests = Turns(), Rests(monkeypatch)

    async def work() -> None:
        for _ in range(10):
            await turns.next()
            rests.now_s += BUSY_S / 2

    await asyncio.gather(work(), work())
    assert 8 <= len(rests.taken_s) <= 10  # after each two of twenty steps, unless nobody waits for one
    assert set(rests.taken_s) == {REST_S}


async def test_steps_now_and_then_wait_for_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, rests = Turns(), Rests(monkeypatch)
    for _ in range(10):
        assert turns.take()
        rests.now_s += 10 * BUSY_S
        for _ in range(FREE_TURNS + 1):
            await asyncio.sleep(0)
    assert not rests.taken_s
