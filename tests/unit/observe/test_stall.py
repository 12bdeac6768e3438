"""The stall monitor sees a blocked loop and a collection, and leaves nothing behind."""

import asyncio
import gc

from penstock.observe.stall import StallMonitor
from penstock.observe.stats import Stats


async def test_lateness_is_recorded() -> None:
    now = [10.0]
    stats, loop = Stats(), asyncio.get_running_loop()
    fired: list[object] = []

    class Loop:
        def call_later(self, delay: float, callback: object) -> asyncio.TimerHandle:
            assert delay == 0.05
            fired.append(callback)
            return loop.call_later(3600, lambda: None)

    monitor = StallMonitor(stats, Loop(), interval_s=0.05, clock=lambda: now[0])  # type: ignore[arg-type]
    monitor.start()
    for late_s in (0.0, 0.3, 0.02):
        now[0] += 0.05 + late_s
        fired[-1]()  # type: ignore[operator]
    now[0] += 0.049  # a wake-up before its time is no negative stall
    fired[-1]()  # type: ignore[operator]
    monitor.stop()
    assert stats.loop_stall.count == 4
    assert abs(stats.loop_stall.total - 0.32) < 1e-6
    assert abs(stats.loop_stall_max_s - 0.3) < 1e-6


async def test_it_keeps_sampling_a_real_loop() -> None:
    stats = Stats()
    monitor = StallMonitor(stats, asyncio.get_running_loop(), interval_s=0.001)
    monitor.start()
    async with asyncio.timeout(30):
        while stats.loop_stall.count < 3:  # noqa: ASYNC110 - the monitor announces nothing
            await asyncio.sleep(0)
    monitor.stop()


async def test_collections_are_timed_only_between_start_and_stop() -> None:
    stats = Stats()
    before = list(gc.callbacks)
    monitor = StallMonitor(stats, asyncio.get_running_loop())
    gc.collect()
    assert stats.gc_pause.count == 0
    monitor.start()
    monitor.start()
    gc.collect()
    seen = stats.gc_pause.count
    assert seen >= 1
    assert stats.gc_pause.total > 0
    monitor.stop()
    monitor.stop()
    gc.collect()
    assert stats.gc_pause.count <= seen + 1  # one may run by itself just before stop
    assert gc.callbacks == before
