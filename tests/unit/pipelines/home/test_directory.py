"""A home's files and locks."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.errors import Busy, PipelineError
from penstock.pipelines.home import Home, Identity, PipelineDirectory, State, Status, Wanted, Wish, default_home

HOLD = """
import sys
from pathlib import Path
from penstock.pipelines.home import Home
with Home(Path(sys.argv[1])).pipeline("revenue").locked("penstock pipeline run revenue.yaml"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def revenue(home: Home) -> PipelineDirectory:
    return home.pipeline("revenue")


@contextmanager
def held_elsewhere(home: Home) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_where_the_home_is() -> None:
    assert default_home({"PENSTOCK_PIPELINES": "/a"}) == Path("/a")
    assert default_home({"XDG_STATE_HOME": "/b"}) == Path("/b/penstock/pipelines")
    assert default_home({"XDG_STATE_HOME": "b"}) == Path.home() / ".local/state/penstock/pipelines"
    assert default_home({}) == Path.home() / ".local/state/penstock/pipelines"


def test_nothing_is_made_by_looking(home: Home, revenue: PipelineDirectory) -> None:
    assert home.names() == []
    assert (revenue.load_identity(), revenue.load_status(), revenue.load_wanted()) == (None, None, None)
    assert revenue.holder() is None
    assert revenue.reset() is None
    assert not home.path.exists()


def test_names(home: Home) -> None:
    home.pipeline("b.2").save_wanted(Wanted("/b", Wish.RUNNING))
    home.pipeline("a_1").events.write("info", "x", "")
    (home.path / "driver.log").write_text("")
    (home.path / ".hidden").mkdir()
    (home.path / "No").mkdir()
    assert home.names() == ["a_1", "b.2"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "Big", "-a", ".a", "a\n", "a" * 101, "driver.lock", "driver.log.1"]
)
def test_names_that_are_none(home: Home, name: str) -> None:
    with pytest.raises(PipelineError, match="is no pipeline's name"):
        home.pipeline(name)


def test_files_there_and_back(revenue: PipelineDirectory) -> None:
    identity = Identity({"source orders": "12ab"}, "/a/revenue.yaml", 5)
    status = Status("revenue", State.RUNNING, batch=2)
    wanted = Wanted("/a/revenue.yaml", Wish.RUNNING, once=True)
    revenue.save_identity(identity)
    revenue.save_status(status)
    revenue.save_wanted(wanted)
    assert (revenue.load_identity(), revenue.load_status(), revenue.load_wanted()) == (identity, status, wanted)
    assert wanted.asked_ns != Wanted("/a/revenue.yaml", Wish.RUNNING, once=True).asked_ns


@pytest.mark.parametrize("name", ["identity", "status", "wanted"])
@pytest.mark.parametrize("how", ["other", "newer", "foreign"])
def test_damaged_files_are_named_with_the_way_out(revenue: PipelineDirectory, name: str, how: str) -> None:
    from penstock.pipelines.home import sealed

    path = revenue.path / f"{name}.json"
    revenue.path.mkdir(parents=True)
    if how == "foreign":
        sealed.save(path, {"colour": "red"})
    else:
        path.write_text('{"version": 9}' if how == "newer" else "Spark")
    with pytest.raises(PipelineError) as raised:
        getattr(revenue, f"load_{name}")()
    assert str(path) in str(raised.value)
    ways = {"identity": "penstock pipeline reset revenue", "status": "remove it", "wanted": "Remove it"}
    assert ("Use the release that wrote it" if how == "newer" else ways[name]) in str(raised.value)


@pytest.mark.parametrize("left", [b"", b"\0" * 300])
def test_a_status_that_a_power_cut_emptied(revenue: PipelineDirectory, left: bytes) -> None:
    revenue.path.mkdir(parents=True)
    (revenue.path / "status.json").write_bytes(left)
    assert revenue.load_status() is None


def test_what_is_synced(revenue: PipelineDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    revenue.save_status(Status("revenue", State.STARTING))
    synced: list[Any] = []
    monkeypatch.setattr("os.fsync", synced.append)
    revenue.save_status(Status("revenue", State.RUNNING))
    assert not synced
    revenue.save_status(Status("revenue", State.STOPPED))
    assert len(synced) == 2
    revenue.save_wanted(Wanted("", Wish.STOPPED))
    assert len(synced) == 4
    revenue.save_identity(Identity({}, "", 0))
    assert len(synced) == 6


def test_the_lock_within_a_process(home: Home, revenue: PipelineDirectory) -> None:
    with revenue.locked("first"):
        holder = home.pipeline("revenue").holder()
        assert holder is not None and (holder.pid, holder.command) == (os.getpid(), "first")
        with pytest.raises(Busy, match=rf"revenue is at work in process {os.getpid()} \(first\)"):
            home.pipeline("revenue").locked("second").__enter__()
    assert revenue.holder() is None
    with revenue.locked("third"):
        pass


def test_the_lock_of_another_process_and_its_death(home: Home, revenue: PipelineDirectory) -> None:
    with held_elsewhere(home) as process:
        holder = revenue.holder()
        assert holder is not None and holder.pid == process.pid
        with pytest.raises(Busy, match=rf"process {process.pid} \(penstock pipeline run revenue\.yaml\)"):
            revenue.locked("second").__enter__()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert revenue.holder() is None
        with revenue.locked("second"):
            pass


def test_a_look_does_not_take_the_lock_from_anybody(
    revenue: PipelineDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look holds the lock for a moment; whoever wants it just then must not be told that it is busy."""
    with revenue.locked("first"):
        pass
    looking = os.open(revenue.path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        os.close(looking)

    monkeypatch.setattr("penstock.pipelines.home.directory.time.sleep", sleep)
    with revenue.locked("second"):
        assert len(waits) == 1


def fill(revenue: PipelineDirectory) -> None:
    revenue.checkpoint.mkdir(parents=True)
    (revenue.checkpoint / "metadata").write_text("query")
    (revenue.path / "sinks" / "lake").mkdir(parents=True)
    (revenue.path / "sinks" / "lake" / "mark").write_text("7")
    revenue.save_identity(Identity({}, "/a", 1))
    revenue.save_status(Status("revenue", State.STOPPED))
    for name in ("beginning.json", "counters.json"):
        (revenue.path / name).write_text("")


def test_reset_moves_and_keeps(revenue: PipelineDirectory) -> None:
    for number in (1, 2):
        fill(revenue)
        revenue.save_wanted(Wanted("/a", Wish.STOPPED))
        moved = revenue.reset()
        assert moved == revenue.path / f"previous-{number}"
        assert (moved / "checkpoint" / "metadata").read_text() == "query"
        assert (moved / "sinks" / "lake" / "mark").read_text() == "7"
        assert sorted(each.name for each in moved.iterdir()) == [
            "beginning.json",
            "checkpoint",
            "counters.json",
            "identity.json",
            "sinks",
            "status.json",
        ]
        left = {each.name for each in revenue.path.iterdir()}
        assert left == {"lock", "wanted.json", "events.jsonl", *(f"previous-{each + 1}" for each in range(number))}
    assert revenue.reset() is None
    assert [each.event for each in revenue.events.read()] == ["reset", "reset"]


def test_reset_counts_on_where_a_previous_one_was_removed(revenue: PipelineDirectory) -> None:
    fill(revenue)
    (revenue.path / "previous-10").mkdir()
    (revenue.path / "previous-x").mkdir()
    assert revenue.reset() == revenue.path / "previous-11"


def test_reset_moves_the_checkpoint_first(revenue: PipelineDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between must not leave state that nobody knows the makers of."""
    fill(revenue)
    done: list[str] = []
    rename = os.rename

    def crash(source: Path, target: Path) -> None:
        if done:
            raise OSError("power cut")
        done.append(source.name)
        rename(source, target)

    monkeypatch.setattr("os.rename", crash)
    with pytest.raises(OSError, match="power cut"):
        revenue.reset()
    assert done == ["checkpoint"]
    assert revenue.load_identity() is not None


def test_reset_of_a_pipeline_at_work(home: Home, revenue: PipelineDirectory) -> None:
    fill(revenue)
    with held_elsewhere(home), pytest.raises(Busy):
        revenue.reset()
    assert (revenue.checkpoint / "metadata").exists()


def test_the_home_needs_no_spark() -> None:
    code = "import sys, penstock.pipelines.home, penstock.pipelines.driver.presence; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"pyspark", "uvicorn", "starlette", "rich"} & set(done.stdout.split()) == set()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of a pipeline of the same name."""
    made = tmp_path / "a" / "revenue.yaml", tmp_path / "b" / "revenue.yaml"
    for each in made:
        each.parent.mkdir()
        each.write_text("name: revenue")
    return made


def test_a_name_is_one_file_s(home: Home, revenue: PipelineDirectory, files: tuple[Path, Path]) -> None:
    one, other = map(str, files)
    assert home.claim("revenue", other).path == revenue.path  # nothing is kept yet
    revenue.save_identity(Identity({}, one, 1))
    assert home.claim("revenue", one).path == revenue.path
    with pytest.raises(PipelineError, match=f"is the state of {one}. Give this one another name"):
        home.claim("revenue", other)


def test_a_file_that_was_moved_keeps_its_state(
    home: Home, revenue: PipelineDirectory, files: tuple[Path, Path]
) -> None:
    one, other = files
    revenue.save_identity(Identity({}, str(one), 1))
    one.unlink()
    assert home.claim("revenue", str(other)).path == revenue.path
    one.symlink_to(other)
    assert home.claim("revenue", str(other)).path == revenue.path


def test_an_identity_with_a_file_as_it_was_typed(
    home: Home, revenue: PipelineDirectory, files: tuple[Path, Path]
) -> None:
    """Then the last status knows where that was."""
    one, other = map(str, files)
    revenue.save_identity(Identity({}, "revenue.yaml", 1))
    assert home.claim("revenue", other).path == revenue.path
    revenue.save_status(Status("revenue", State.STOPPED, file=one))
    assert home.claim("revenue", one).path == revenue.path
    with pytest.raises(PipelineError, match="is the state of"):
        home.claim("revenue", other)
