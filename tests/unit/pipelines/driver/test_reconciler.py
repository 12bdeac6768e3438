"""What is wanted against what runs, with runs that need no Spark."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.pipelines.driver.reconciler import Reconciler, refuse_wanted
from penstock.pipelines.home import Home, PipelineDirectory, State, Status, Wanted, Wish
from penstock.pipelines.home.status import now_ms

from .fake_driver import FakeRun

DEADLINE_S = 60


class Stage:
    """A home with pipelines, and a reconciler that looks as often as the test waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = Home(path / "home")
        self.made: list[str] = []
        self.when_made: Callable[[], None] = lambda: None
        self.reconciler = self.new_reconciler()

    def new_reconciler(self, *, after_crash: bool = False) -> Reconciler:
        self.reconciler = Reconciler(self.home, self._make_run, master="fake", after_crash=after_crash)
        return self.reconciler

    def _make_run(self, wanted: Wanted, directory: PipelineDirectory) -> FakeRun:
        self.made.append(directory.name)
        self.when_made()
        return FakeRun(wanted, directory)

    def want(self, name: str, state: Wish = Wish.RUNNING, behaviour: str = "runs", once: bool = False) -> None:
        file = self.path / f"{name}.txt"
        file.write_text(behaviour)
        self.home.pipeline(name).save_wanted(Wanted(str(file), state, once))

    def status(self, name: str) -> Status:
        found = self.home.pipeline(name).load_status()
        assert found is not None
        return found

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.reconciler.look()
            if condition():
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait_state(self, name: str, state: State) -> None:
        def reached() -> bool:
            found = self.home.pipeline(name).load_status()
            return found is not None and found.state is state

        self.wait(reached)

    def end(self) -> None:
        for name in self.home.names():
            for word in ("go", "done"):
                (self.home.path / name / word).touch()
        self.reconciler.stop()
        deadline = time.monotonic() + DEADLINE_S
        while self.reconciler.at_work():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.end()


def test_start_and_stop(stage: Stage) -> None:
    stage.reconciler.look()
    assert stage.reconciler.statuses() == []
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    assert stage.reconciler.at_work() == ["a"]
    assert stage.status("a").pid == os.getpid()
    assert (stage.status("a").file, stage.status("a").master) == (str(stage.path / "a.txt"), "fake")
    stage.want("a", Wish.STOPPED)
    stage.wait(lambda: not stage.reconciler.at_work())
    assert stage.status("a").state is State.STOPPED
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    assert stage.made == ["a", "a"]


def test_a_slow_start_holds_nobody_up(stage: Stage) -> None:
    stage.want("a", behaviour="slow")
    stage.want("b")
    stage.want("c", behaviour="slow")
    stage.wait_state("b", State.RUNNING)
    assert stage.status("a").state is State.STARTING
    (stage.home.path / "c" / "go").touch()
    stage.wait_state("c", State.RUNNING)
    assert [each.state for each in stage.reconciler.statuses()][1:] == [State.RUNNING, State.RUNNING]


def test_stopped_while_it_starts(stage: Stage) -> None:
    stage.want("a", behaviour="slow")
    stage.wait_state("a", State.STARTING)
    stage.want("a", Wish.STOPPED)
    stage.reconciler.look()
    (stage.home.path / "a" / "go").touch()
    stage.wait(lambda: not stage.reconciler.at_work())
    assert stage.status("a").state is State.STOPPED


def test_stopped_before_it_starts(stage: Stage) -> None:
    def stop() -> None:
        while not stage.reconciler.at_work():
            time.sleep(0.01)
        stage.reconciler.stop()

    stage.when_made = stop
    stage.want("a", behaviour="refuse")
    stage.wait_state("a", State.STOPPED)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("refuse", "sink lake has no column at"),
        ("bug", "RuntimeError: oops"),
        ("wrong", "line 3: no such step"),
    ],
)
def test_a_pipeline_that_cannot_start(stage: Stage, behaviour: str, reason: str) -> None:
    stage.want("bad", behaviour=behaviour)
    stage.want("good")
    stage.wait_state("bad", State.FAILED)
    stage.wait_state("good", State.RUNNING)
    assert stage.status("bad").reason == reason
    (event,) = stage.home.pipeline("bad").events.read()
    assert (event.level, event.event, event.text) == ("error", "failed", reason)
    stage.wait(lambda: stage.reconciler.at_work() == ["good"])  # it knows a moment after its file does
    assert {each.pipeline: each.state for each in stage.reconciler.statuses()}["bad"] is State.FAILED


def test_failed_stays_failed_until_it_is_wanted_anew(stage: Stage) -> None:
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    (stage.home.path / "a" / "die").write_text("topic orders is gone")
    stage.wait(lambda: not stage.reconciler.at_work())
    assert (stage.status("a").state, stage.status("a").reason) == (State.FAILED, "topic orders is gone")
    for _ in range(5):
        stage.reconciler.look()
    assert stage.made == ["a"]
    (stage.home.path / "a" / "die").unlink()
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    assert stage.made == ["a", "a"]


def test_wanted_again_while_it_runs(stage: Stage) -> None:
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    stage.want("a")
    for _ in range(5):
        stage.reconciler.look()
    assert stage.made == ["a"]
    (stage.home.path / "a" / "die").write_text("oh")
    stage.wait(lambda: not stage.reconciler.at_work())
    stage.reconciler.look()
    assert stage.made == ["a"]  # what was said while it ran was about that run


def test_wanted_from_another_file(stage: Stage) -> None:
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    other = stage.path / "other.txt"
    other.write_text("runs")
    stage.home.pipeline("a").save_wanted(Wanted(str(other), Wish.RUNNING))
    stage.wait(lambda: len(stage.made) == 2 and stage.status("a").file == str(other))


def test_stop_and_start_while_it_ends(stage: Stage) -> None:
    stage.want("a", behaviour="lingers")
    stage.wait_state("a", State.RUNNING)
    stage.want("a", Wish.STOPPED, "lingers")
    stage.wait_state("a", State.STOPPING)
    stage.want("a", behaviour="lingers")
    for _ in range(5):
        stage.reconciler.look()
    assert stage.made == ["a"]
    (stage.home.path / "a" / "done").touch()
    stage.wait(lambda: len(stage.made) == 2)


def test_once(stage: Stage) -> None:
    stage.want("a", once=True)
    stage.wait_state("a", State.FINISHED)
    stage.wait(lambda: not stage.reconciler.at_work())
    stage.new_reconciler(after_crash=True).look()
    assert stage.made == ["a"]
    stage.want("a", once=True)
    stage.wait(lambda: len(stage.made) == 2)


def test_the_next_driver_goes_on(stage: Stage) -> None:
    for name in ("a", "b"):
        stage.want(name)
        stage.wait_state(name, State.RUNNING)
    stage.want("gone", Wish.STOPPED)
    stage.end()
    assert stage.status("a").state is State.STOPPED
    wanted = stage.home.pipeline("a").load_wanted()
    assert wanted is not None and wanted.state is Wish.RUNNING
    stage.made.clear()
    stage.new_reconciler()
    stage.wait_state("a", State.RUNNING)
    stage.wait_state("b", State.RUNNING)
    assert sorted(stage.made) == ["a", "b"]


@pytest.mark.parametrize("after_crash", [True, False])
def test_the_next_driver_and_what_had_failed(stage: Stage, after_crash: bool) -> None:
    """The driver that died may have been the reason; one that ended in order was not."""
    stage.want("a", behaviour="refuse")
    stage.wait_state("a", State.FAILED)
    (stage.path / "a.txt").write_text("runs")
    stage.new_reconciler(after_crash=after_crash).look()
    assert len(stage.made) == (2 if after_crash else 1) or stage.reconciler.at_work()
    if after_crash:
        stage.wait_state("a", State.RUNNING)
    else:
        assert not stage.reconciler.at_work()
        stage.want("a")
        stage.wait_state("a", State.RUNNING)


def test_broken_files(stage: Stage) -> None:
    stage.want("bad")
    (stage.home.path / "bad" / "wanted.json").write_text("{}")
    stage.want("dark")
    (stage.home.path / "dark" / "status.json").write_text("{}")
    stage.want("good")
    stage.wait_state("good", State.RUNNING)
    stage.wait_state("bad", State.FAILED)
    assert "wanted.json is damaged" in stage.status("bad").reason
    stage.wait_state("dark", State.RUNNING)  # numbers for people are no reason not to run
    for _ in range(5):
        stage.reconciler.look()
    assert len(stage.home.pipeline("bad").events.read()) == 1
    stage.want("bad")
    stage.wait_state("bad", State.RUNNING)


def test_a_wish_that_breaks_while_it_runs(stage: Stage) -> None:
    stage.want("a")
    stage.wait_state("a", State.RUNNING)
    (stage.home.path / "a" / "wanted.json").write_text("{}")
    for _ in range(5):
        stage.reconciler.look()
    assert stage.reconciler.at_work() == ["a"]
    (event,) = stage.home.pipeline("a").events.read()
    assert event.text.endswith("what runs goes on")


def test_somebody_else_runs_it(stage: Stage) -> None:
    directory = stage.home.pipeline("a")
    theirs = Status("a", State.RUNNING, pid=1, batch=7)
    with directory.locked("penstock pipeline run a.yaml"):
        directory.save_status(theirs)
        stage.want("a")
        stage.reconciler.look()
        stage.wait(lambda: not stage.reconciler.at_work())
        (status,) = stage.reconciler.statuses()
        assert status.state is State.FAILED
        assert "at work in process" in status.reason
        assert directory.load_status() == theirs


def test_counts_are_kept_by_a_failure(stage: Stage) -> None:
    stage.want("a", behaviour="refuse")
    stage.home.pipeline("a").save_status(Status("a", State.STOPPED, batches=7, rows=70))
    stage.wait_state("a", State.FAILED)
    assert (stage.status("a").batches, stage.status("a").rows) == (7, 70)


def test_no_engine(stage: Stage) -> None:
    stage.want("a")
    stage.want("b", Wish.STOPPED)
    refuse_wanted(stage.home, "nowhere", "no Java")
    assert (stage.status("a").state, stage.status("a").reason) == (State.FAILED, "no Java")
    assert stage.home.pipeline("b").load_status() is None


def test_an_old_failure_is_not_about_a_new_wish(stage: Stage) -> None:
    stage.want("a")
    old = Status("a", State.FAILED, "old", updated_ms=now_ms() - 1000)
    stage.home.pipeline("a").save_status(replace(old))
    stage.wait_state("a", State.RUNNING)
