"""The virtual loop: no waiting, the same order for the same seed, processes that die without a `finally`."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.ports.clock import Clock
from penstock.testing.virtual_clock import DeadlockError, VirtualClock, VirtualLoop, run_virtual


def test_hours_pass_in_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 7200)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(main, 1) == pytest.approx(3 * 3600)
    assert time.monotonic() - started < 60


def trace(seed: int) -> tuple[list[str], int]:
    seen: list[str] = []

    async def worker(name: str, gate: asyncio.Event) -> None:
        for step in range(3):
            await asyncio.sleep(0)
            seen.append(f"{name}{step}")
        await gate.wait()
        seen.append(name)

    async def main() -> int:
        gate = asyncio.Event()
        tasks = [asyncio.create_task(worker(name, gate)) for name in "abcdef"]
        await asyncio.sleep(1)
        gate.set()
        await asyncio.gather(*tasks)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.steps

    steps = run_virtual(main, seed)
    return seen, steps


def test_equal_seeds_give_equal_runs_and_others_differ() -> None:
    assert [trace(seed) for seed in range(20)] == [trace(seed) for seed in range(20)]
    assert len({tuple(trace(seed)[0]) for seed in range(20)}) > 15


def test_each_task_keeps_its_own_order_and_timers_theirs() -> None:
    for seed in range(20):
        seen, _ = trace(seed)
        for name in "abcdef":
            assert [entry for entry in seen if entry.startswith(name)] == [
                f"{name}0",
                f"{name}1",
                f"{name}2",
                name,
            ]

    async def main() -> list[int]:
        fired: list[int] = []
        for delay in (3, 1, 2):
            asyncio.get_running_loop().call_later(delay, fired.append, delay)
        await asyncio.sleep(4)
        return fired

    assert all(run_virtual(main, seed) == [1, 2, 3] for seed in range(10))


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    async def stuck_forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match="stuck_forever"):
        run_virtual(stuck_forever, 1)


def test_errors_come_out() -> None:
    async def failing() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(failing, 1)

    async def failing_callback() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_virtual(failing_callback, 1)


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.time)

    with pytest.raises(RuntimeError, match="thread"):
        run_virtual(main, 1)


def test_tasks_left_over_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("background")

    async def main() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        assert not task.done()

    run_virtual(main, 1)
    assert ended == ["background"]


def test_many_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_later(5000, print)  # before them, so that none of them is ever next
        for _ in range(1000):
            loop.call_later(10_000, print).cancel()
            await asyncio.sleep(0.001)
        return len(loop._scheduled)

    assert run_virtual(main, 1) < 300


def kill_midway(seed: int) -> list[str]:
    seen: list[str] = []

    async def child() -> None:
        try:
            while True:
                await asyncio.sleep(0.1)
                seen.append("child")
        finally:
            seen.append("child finally")

    async def program() -> None:
        task = asyncio.create_task(child())
        try:
            await task
        finally:
            seen.append("program finally")

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = loop.process("program")
        process.create_task(program())
        await asyncio.sleep(0.35)
        process.kill()
        await asyncio.sleep(10)
        return list(seen)

    return run_virtual(main, seed)


def test_a_killed_process_never_runs_again() -> None:
    for seed in range(5):
        assert kill_midway(seed) == ["child"] * 3


def test_the_clock_follows_the_loop_and_jumps_on_demand() -> None:
    async def main() -> None:
        own = VirtualClock()
        clock: Clock = own
        wall, steady = clock.now_ms(), clock.monotonic()
        await asyncio.sleep(1.5)
        assert clock.now_ms() - wall == 1500
        assert clock.monotonic() - steady == 1.5
        own.jump_ms(-3_600_000)
        assert clock.now_ms() - wall == 1500 - 3_600_000
        assert clock.monotonic() - steady == 1.5

    function: Callable[[], Coroutine[Any, Any, None]] = main
    run_virtual(function, 1)


def test_a_paused_process_misses_nothing_and_is_late_for_everything() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = loop.process("p")
        seen: list[tuple[str, float]] = []

        async def work() -> None:
            for step in "abc":
                await asyncio.sleep(1)
                seen.append((step, loop.time()))

        task = process.create_task(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        assert seen == [("a", 1.0)]
        process.resume()
        await task
        assert seen == [("a", 1.0), ("b", 11.5), ("c", 12.5)]

    run_virtual(main, 1)


def test_a_process_killed_while_it_is_paused_stays_dead() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = loop.process("p")
        seen: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(1)
            finally:
                seen.append("ran")

        process.create_task(work())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(1)
        process.kill()
        process.resume()
        await asyncio.sleep(1)
        assert seen == []

    run_virtual(main, 1)
