"""Turns for slow work: one step, then turns of the loop for others, in the order of asking."""

import asyncio
from itertools import pairwise

from penstock.turns import FREE_TURNS, Turns


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
