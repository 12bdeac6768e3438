"""What a run of the pipelines' benchmark consists of, and what it counts."""

import json
from pathlib import Path

import pytest
from bench.pipelines import GROUPS, complete, parse, run_rounds
from bench.pipelines_driver import RATE, Traffic, point
from bench.pipelines_queries import FULL, SMALL, WAYS, Bench, save_pipeline, wait_for_commits, written_rows
from bench.spark_queries import Figures, Group, Workbench, WrongRows

from penstock.pipelines.spec import load


def bench(scale: float) -> Bench:
    return Bench(None, None, Path(), scale)  # type: ignore[arg-type]  # nothing is asked of broker and session


def test_everything_by_default_is_complete() -> None:
    options = parse([])
    assert options.only == list(GROUPS)
    assert complete(options)


@pytest.mark.parametrize(
    "arguments", [["--rounds", "2"], ["--scale", "0.5"], ["--only", "copy,sinks"], ["--output", "a.json"], ["--quick"]]
)
def test_anything_less_is_not(arguments: list[str]) -> None:
    assert not complete(parse(arguments))


def test_a_quick_look_is_one_round_of_what_was_chosen() -> None:
    options = parse(["--quick", "--only", "small"])
    assert (options.rounds, options.scale, options.only) == (1, 0.02, ["small"])


@pytest.mark.parametrize("arguments", [["--only", "copy,speed"], ["--rounds", "0"], ["--scale", "-1.0"]])
def test_nonsense_is_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert arguments[1].split(",")[-1] in capsys.readouterr().err.splitlines()[-1]


def test_backlogs_are_whole_thousands_so_that_written_rows_are_known() -> None:
    assert bench(1.0).backlog(FULL) == FULL
    assert bench(0.0123).backlog(FULL).records == 24_000
    assert bench(1e-9).backlog(SMALL).records == 1_000
    rows = [number for number in range(3_000) if number % 10 != 9 and number % 1_000 * 119 // 100 > 0]
    assert written_rows(3_000) == len(rows)


def test_the_pipeline_is_one_that_pipelines_understand(tmp_path: Path) -> None:
    spec = load(save_pipeline(tmp_path, "here:9092", "orders", {"topic": "out"}, 20))
    assert (spec.name, spec.every_s, spec.limit) == ("gross", 0.0, 20)
    assert [each.kind for each in spec.sinks] == ["topic"]


def test_rounds_come_after_preparing(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def group(name: str, every: int = 1) -> Group:
        def measure(_bench: Workbench, number: int) -> Figures:
            done.append(f"{name} {number}")
            return {way: {name: float(len(done))} for way in WAYS}

        return Group(measure, lambda _bench: done.append(f"prepare {name}"), every)

    monkeypatch.setattr("bench.pipelines.GROUPS", {"a": group("a"), "b": group("b", every=3), "c": group("c")})
    found = run_rounds(bench(1.0), ["b", "a"], 2)
    assert done == ["prepare a", "prepare b", "a 0", "b 0", "a 1"]
    assert found == [{way: {"a": 3.0, "b": 4.0} for way in WAYS}, {way: {"a": 5.0} for way in WAYS}]


def test_commits_are_counted_and_a_failure_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "1").touch()
    wait_for_commits(tmp_path, 2, lambda: None)
    with pytest.raises(WrongRows, match=r"micro-batch 2 .* no more"):
        wait_for_commits(tmp_path, 3, lambda: "no more")


@pytest.mark.parametrize(("share", "age"), [(0.5, 50.0), (0.95, 95.0), (0.99, 99.0)])
def test_points_of_a_hundred_ages(share: float, age: float) -> None:
    assert point([float(number) for number in range(1, 101)], share) == age
    assert point([7.0], share) == 7.0
    assert point([1.0, 2.0, 3.0], share) == (2.0 if share == 0.5 else 3.0)


class Message:
    def __init__(self, number: int, at: int) -> None:
        self._value = json.dumps({"id": number, "at": at}).encode()

    def error(self) -> None: ...

    def value(self) -> bytes:
        return self._value


class Copies:
    """A consumer that has all copies at once."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)

    def poll(self, _timeout_s: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        found, self._messages = self._messages, []
        return found


class Ended:
    def is_alive(self) -> bool:
        return False


def test_traffic_waits_for_every_copy_and_leaves_the_first_seconds_out() -> None:
    warm = 5 * RATE
    traffic = Traffic("", "", 0.0, sent=2)
    traffic.receive(Copies(Message(0, 0), Message(1, 0)), Ended())  # type: ignore[arg-type]
    assert traffic.counted() == []
    traffic.ages_ms |= {warm: 4.0, warm + 1: 2.0, warm - 1: 9.0}
    assert traffic.counted() == [2.0, 4.0]


def test_a_copy_lost_or_doubled_ends_the_run() -> None:
    with pytest.raises(WrongRows, match="1 copies of 2 came"):  # its deadline has passed
        Traffic("", "", -200.0, sent=2).receive(Copies(Message(0, 0)), Ended())  # type: ignore[arg-type]
    with pytest.raises(WrongRows, match="record 0 has two copies"):
        Traffic("", "", 0.0, sent=2).receive(Copies(Message(0, 0), Message(0, 0)), Ended())  # type: ignore[arg-type]


def test_fewer_records_than_the_rate_asks_for_end_the_run() -> None:
    Traffic("", "", 10.0, sent=9 * RATE).check_rate()
    with pytest.raises(WrongRows, match="17,999 of 20,000 records were sent"):
        Traffic("", "", 10.0, sent=9 * RATE - 1).check_rate()
