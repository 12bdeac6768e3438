"""What a trace of the scheduler says about one request: each instant counted once, for the one who held it up."""

from collections import Counter
from pathlib import Path

from bench.compaction_waits import GENERATOR, LOOP, Cast, Phase, Reader, account, table
from bench.neighbours import Sample, Span
from bench.scheduling import Piece, Trace

SENDER, POLLER, BROKER, COMPACTOR, STRANGER = 10, 11, 20, 30, 40
NAMES = {0: "swapper/0", SENDER: "load", POLLER: "load", BROKER: "penstock", COMPACTOR: "python", STRANGER: "a b=c"}


def switch(at_us: int, core: int, before: int, state: str, after: int) -> str:
    return (
        f"{before} [{core:03}] 5.{at_us:06}000: sched:sched_switch: prev_comm={NAMES[before]} prev_pid={before} "
        f"prev_prio=120 prev_state={state} ==> next_comm={NAMES[after]} next_pid={after} next_prio=120\n"
    )


def wake(at_us: int, by: int, woken: int, core: int, event: str = "waking") -> str:
    return (
        f"{by} [000] 5.{at_us:06}000: sched:sched_{event}: comm={NAMES[woken]} pid={woken} prio=120 "
        f"target_cpu={core:03}\n"
    )


# The sender on core 1 wakes the broker, whose core 0 the compactor has until 400; it answers and wakes the poller.
REQUEST = [
    switch(10, 0, BROKER, "S", COMPACTOR),
    switch(20, 1, POLLER, "S", SENDER),
    wake(100, SENDER, BROKER, 0),
    wake(101, SENDER, BROKER, 0, "wakeup"),
    switch(120, 1, SENDER, "S", 0),
    switch(400, 0, COMPACTOR, "R", BROKER),
    wake(450, BROKER, POLLER, 1),
    switch(460, 1, 0, "R", POLLER),
    switch(480, 0, BROKER, "S", COMPACTOR),
    switch(500, 1, POLLER, "S", 0),
]


def traced(lines: list[str]) -> Trace:
    trace = Trace()
    trace.read(lines)
    return trace


def cast() -> Cast:
    roles = {SENDER: GENERATOR, POLLER: GENERATOR, BROKER: LOOP, COMPACTOR: "compacting process"}
    return Cast(BROKER, SENDER, 1, roles, POLLER)


def us(pieces: list[Piece]) -> list[tuple[int, str, int]]:
    return [(piece.thread, piece.state, (piece.end_ns - piece.begin_ns) // 1000) for piece in pieces]


def test_a_request_is_followed_from_its_end_to_its_beginning() -> None:
    path = list(traced(REQUEST).path(POLLER, 5_000_090_000, 5_000_470_000, lambda _: True))
    assert us(path) == [
        (POLLER, "runs", 10),
        (POLLER, "waits", 10),
        (BROKER, "runs", 50),
        (BROKER, "waits", 300),
        (SENDER, "runs", 10),
    ]


def test_waiting_is_told_from_whom_and_from_waking_an_idle_core() -> None:
    held: Counter[str] = Counter()
    spent = Reader(traced(REQUEST), cast()).spent(Sample(5.00009, 0.38), held)
    assert +spent == {
        "load generator ran": 20_000,
        "an idle core woke up": 10_000,
        "broker's loop ran": 50_000,
        "broker's loop waited for a core": 300_000,
    }
    assert held == {"broker's loop, for compacting process": 300_000, "load generator, for nobody": 10_000}


def test_whom_an_interrupt_came_upon_did_not_do_the_request() -> None:
    lines = [line.replace(f"{SENDER} [000]", f"{STRANGER} [000]") for line in REQUEST]
    path = list(traced(lines).path(POLLER, 5_000_090_000, 5_000_470_000, lambda thread: thread != STRANGER))
    assert us(path)[-2:] == [(BROKER, "waits", 300), (BROKER, "asleep", 10)]


def test_a_thread_called_on_its_way_to_sleep_waits_from_its_wakeup() -> None:
    lines = [
        switch(10, 0, 0, "R", BROKER),
        wake(90, SENDER, BROKER, 0),
        switch(100, 0, BROKER, "D", COMPACTOR),
        wake(110, 0, BROKER, 0, "wakeup"),
        switch(150, 0, COMPACTOR, "R+", BROKER),
    ]
    path = list(traced(lines).path(BROKER, 5_000_050_000, 5_000_160_000, lambda _: False))
    assert us(path) == [(BROKER, "runs", 10), (BROKER, "waits", 40), (BROKER, "blocked", 10), (BROKER, "runs", 50)]


def test_a_thread_that_is_moved_waits_for_the_other_core_from_then_on() -> None:
    moved = f"{STRANGER} [001] 5.000200000: sched:sched_migrate_task: comm=penstock pid={BROKER} prio=120 "
    lines = [*REQUEST[:5], moved + "orig_cpu=0 dest_cpu=1\n", switch(250, 1, 0, "R", BROKER)]
    path = list(traced(lines).path(BROKER, 5_000_090_000, 5_000_260_000, lambda _: True))
    assert [(piece.state, piece.core) for piece in path] == [("runs", 1), ("waits", 1), ("waits", 0), ("runs", 1)]


def test_what_came_before_the_trace_is_not_known() -> None:
    path = list(traced(REQUEST).path(STRANGER, 5_000_000_000, 5_000_001_000, lambda _: True))
    assert us(path) == [(STRANGER, "asleep", 1)]


def test_slow_is_above_the_quiet_phases_p95_and_has_a_main_reason() -> None:
    """Twenty quiet requests of a microsecond, and a slow one beside compaction."""
    quiet = [Sample(1 + number / 100, 0.001) for number in range(20)]
    phases = [
        Phase(False, Span(1.0, 2.0), Path("quiet"), Counter()),
        Phase(True, Span(5.0, 6.0), Path("beside"), Counter({"broker, minor": 3})),
    ]
    traces = {Path("quiet"): Trace(), Path("beside"): traced(REQUEST)}
    limit_ms, accounts = account(phases, [*quiet, Sample(5.00009, 0.38)], cast(), traces.__getitem__)
    assert limit_ms == 0.001
    assert (accounts[False].slow, accounts[True].slow) == (0, 1)
    assert accounts[True].mainly == {"broker's loop waited for a core": 1}
    assert accounts[True].cores_ns["compacting process"] == 390_000 + 1_000_000_000 - 480_000
    assert "| broker's loop waited for a core | 0% | 0% | 0 | 100% | 79% | 300 |" in table(limit_ms, accounts)
