"""Turns for slow work: one step in each turn of the loop, in the order of asking."""

import asyncio

from penstock.turns import Turns


async def test_one_step_in_each_turn_of_the_loop() -> None:
    turns, steps, rounds = Turns(), [], 0

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
    assert len({turn for _, turn in steps}) == len(steps)


async def test_who_comes_alone_does_not_wait() -> None:
    turns = Turns()
    assert turns.take()
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
