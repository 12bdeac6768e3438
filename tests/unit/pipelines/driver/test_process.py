"""The driver's process: its lock, its signals, its death, its end. Its runs need no Spark."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.pipelines.driver.presence import Presence, trim_log
from penstock.pipelines.home import Home, State, Status, Wanted, Wish

FAKE = Path(__file__).with_name("fake_driver.py")
DEADLINE_S = 60


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Site:
    """A home, and drivers for it one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = Home(path / "home")
        self.presence = Presence(self.home)
        self.drivers: list[subprocess.Popen[str]] = []

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(FAKE), "--home", str(self.home.path), "--master", "fake", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.path,
        )
        self.drivers.append(process)
        return process

    def begin_and_wait(self, *words: str) -> "subprocess.Popen[str]":
        process = self.begin(*words)
        wait(lambda: (found := self.presence.find()) is not None and found.pid == process.pid)
        return process

    def want(self, name: str, behaviour: str = "runs") -> None:
        file = self.path / f"{name}.txt"
        file.write_text(behaviour)
        self.home.pipeline(name).save_wanted(Wanted(str(file), Wish.RUNNING))

    def status(self, name: str) -> Status | None:
        return self.home.pipeline(name).load_status()

    def wait_state(self, name: str, state: State) -> None:
        wait(lambda: (found := self.status(name)) is not None and found.state is state)

    def kill(self, process: "subprocess.Popen[str]") -> None:
        process.kill()
        process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.drivers:
        process.kill()
        process.communicate()


def test_a_term_ends_it_after_the_micro_batches(site: Site) -> None:
    site.want("a", "lingers")
    driver = site.begin_and_wait()
    site.wait_state("a", State.RUNNING)
    driver.send_signal(signal.SIGTERM)
    site.wait_state("a", State.STOPPING)
    assert driver.poll() is None
    (site.home.path / "a" / "done").touch()
    said, _ = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 0
    assert "engine closed" in said
    found = site.status("a")
    assert found is not None and found.state is State.STOPPED
    wanted = site.home.pipeline("a").load_wanted()
    assert wanted is not None and wanted.state is Wish.RUNNING
    assert site.presence.load() is None and site.presence.holder() is None


def test_the_death_of_a_driver_and_the_next_one(site: Site) -> None:
    site.want("a")
    site.want("b", "refuse")
    first = site.begin_and_wait()
    site.wait_state("a", State.RUNNING)
    site.wait_state("b", State.FAILED)
    site.kill(first)
    left = site.status("a")
    assert left is not None and left.state is State.RUNNING
    assert site.home.pipeline("a").holder() is None
    assert site.presence.find() is None and site.presence.was_left()
    (site.path / "b.txt").write_text("runs")
    second = site.begin_and_wait()
    wait(lambda: (found := site.status("a")) is not None and found.batches > left.batches)
    assert site.status("a").pid == second.pid  # type: ignore[union-attr]
    site.wait_state("b", State.RUNNING)


def test_one_driver_at_a_time(site: Site) -> None:
    first = site.begin_and_wait()
    second = site.begin()
    said, _ = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"a driver is up for {site.home.path} already, in process {first.pid}" in said
    assert "Traceback" not in said
    found = site.presence.find()
    assert found is not None and found.pid == first.pid


def test_it_ends_when_nothing_runs(site: Site) -> None:
    site.want("a", "refuse")
    driver = site.begin("--idle", "0.2")
    driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 0
    assert site.presence.load() is None
    site.wait_state("a", State.FAILED)


def test_it_stays_while_something_runs(site: Site) -> None:
    site.want("a")
    driver = site.begin_and_wait("--idle", "0.2")
    site.wait_state("a", State.RUNNING)
    before = site.status("a")
    wait(lambda: (found := site.status("a")) is not None and before is not None and found.batches > before.batches + 50)
    assert driver.poll() is None


def test_health_and_metrics(site: Site) -> None:
    site.want("a")
    site.begin_and_wait()
    site.wait_state("a", State.RUNNING)
    found = site.presence.find()
    assert found is not None

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://{found.http}{path}", timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())

    wait(lambda: json.loads(get("/health"))["pipelines"].get("a", {}).get("state") == "running")
    assert 'penstock_pipeline_state{pipeline="a",state="running"} 1.0' in get("/metrics")
    assert json.loads(get("/health/ready"))["status"] == "ready"


def test_without_spark_all_that_is_wanted_fails(site: Site) -> None:
    site.want("a")
    driver = site.begin("--master", "nowhere")
    said, _ = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 1
    assert "Spark at 'nowhere' does not start" in said
    found = site.status("a")
    assert found is not None and found.state is State.FAILED
    assert "Spark at 'nowhere' does not start" in found.reason


def test_an_address_that_is_taken(site: Site) -> None:
    site.begin_and_wait()
    found = site.presence.find()
    assert found is not None
    other = Site(site.path / "other")
    driver = site.begin("--home", str(other.home.path), "--http", found.http)
    said, _ = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 2
    assert f"--http {found.http} cannot be bound" in said


def test_an_engine_that_dies_at_once_is_the_end(site: Site) -> None:
    site.want("a")
    driver = site.begin_and_wait()
    site.wait_state("a", State.RUNNING)
    (site.path / "engine-dies").touch()
    said, _ = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 1
    assert "died soon after its start" in said


def test_an_engine_that_dies_later_is_begun_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SHORTEST_LIFE_S", "0")
    site.want("a")
    driver = site.begin_and_wait()
    site.wait_state("a", State.RUNNING)
    first = site.presence.find()
    assert first is not None
    (site.path / "engine-dies").touch()
    wait(lambda: (found := site.presence.find()) is not None and found.started_ms > first.started_ms)
    (site.path / "engine-dies").unlink()
    site.wait_state("a", State.RUNNING)
    assert driver.poll() is None
    again = site.presence.find()
    assert again is not None and again.pid == driver.pid


def test_a_broken_driver_json_is_no_obstacle(site: Site) -> None:
    site.home.path.mkdir()
    (site.home.path / "driver.json").write_text("{}")
    site.begin()
    site.want("a")
    site.wait_state("a", State.RUNNING)


def test_spawned_it_outlives_whoever_began_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipelines.driver.presence.PROGRAM", [str(FAKE)])
    site.want("a")
    process = site.presence.spawn("fake", "127.0.0.1:0")
    try:
        site.wait_state("a", State.RUNNING)
        assert os.getsid(process.pid) == process.pid
        assert "pipeline starts" in site.presence.log.read_text()
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_its_log_is_emptied_in_place(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with log.open("ab", buffering=0) as file:
        file.write(b"a" * 100)
        trim_log(log, 100)
        file.write(b"b")
        trim_log(log, 100)
        file.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "driver.log.1").read_bytes() == b"a" * 100 + b"b"
    trim_log(tmp_path / "none")
