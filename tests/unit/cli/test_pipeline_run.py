"""`penstock pipeline new | check | run`: what they say and how they end; no Spark is started."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main as root
from penstock.cli import pipeline_run
from penstock.cli.main import main
from penstock.cli.pipeline_run import Stops, follow
from penstock.pipelines import check
from penstock.pipelines.errors import Finding, NotInstalled, PipelineError, SpecError
from penstock.pipelines.home import Home, PipelineDirectory
from penstock.pipelines.home.status import State, Status
from penstock.pipelines.model import Place, Spec
from penstock.pipelines.run import run as runs
from penstock.pipelines.run import sessions
from penstock.pipelines.spec.sample import SAMPLES

FILE = """\
name: shop
sources: {orders: {topic: orders, format: json, schema: id BIGINT}}
steps:
  clean: {sql: SELECT id FROM orders}
sinks: {lake: {parquet: ./lake}}
"""
FINISHED = Status("shop", State.FINISHED, rows=1200, batches=3, dead_letters=1)


class FakeSpark:
    def __init__(self) -> None:
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


class FakeRun:
    """A run that looks twice before it ends; `during` is what happens meanwhile."""

    during: Callable[["FakeRun"], None] = staticmethod(lambda run: None)
    refusal: PipelineError | None = None
    failure: PipelineError | None = None
    made: "list[FakeRun]"

    def __init__(
        self,
        spec: Spec,
        directory: PipelineDirectory,
        spark: object,
        *,
        once: bool,
        on_status: Callable[[Status], None],
    ) -> None:
        self.spec, self.directory, self.once = spec, directory, once
        self.status = Status("shop", State.RUNNING, batches=1)
        self.error: PipelineError | None = None
        self.stops = self.looks = 0
        self._on_status = on_status
        type(self).made.append(self)

    def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._on_status(self.status)

    def stop(self) -> None:
        self.stops += 1

    def wait(self, timeout_s: float | None = None) -> bool:
        self.looks += 1
        if self.looks == 1:
            self.during(self)
            return False
        self.status, self.error = FINISHED, self.failure
        return self.looks > 2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(root.COMMANDS, "pipeline", "")
    monkeypatch.setenv("PENSTOCK_PIPELINES", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def file() -> str:
    Path("shop.yaml").write_text(FILE)
    return "shop.yaml"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    made = FakeSpark()
    monkeypatch.setattr(sessions, "open_session", lambda _master, _conf: made)
    return made


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch, spark: FakeSpark) -> type[FakeRun]:
    class Fake(FakeRun):
        made: "list[FakeRun]" = []  # noqa: RUF012 - of this test alone

    monkeypatch.setattr(runs, "Run", Fake)
    return Fake


# --- the group


def test_help_of_the_group_imports_no_command() -> None:
    script = (
        "import sys; from penstock.cli import main; main.COMMANDS['pipeline'] = ''; main.main(['pipeline', '--help']);"
        "print(*[name for name in sys.modules if name.startswith('penstock.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    *told, modules = done.stdout.splitlines()
    assert set(modules.split()) == {
        "penstock.cli",
        "penstock.cli.late_group",
        "penstock.cli.main",
        "penstock.cli.failure",
        "penstock.cli.pipeline",
        "penstock.errors",
    }
    assert [line.split()[0] for line in told if line.startswith("  ") and "  " in line.strip()][1:12] == [
        "new", "check", "run", "graph", "start", "list", "status", "stop", "logs", "backfill", "reset"
    ]  # fmt: skip


def test_every_command_of_the_table_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.pipeline import COMMANDS

    for name in COMMANDS:
        assert main(["pipeline", name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: penstock pipeline {name} ")


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "rnu"]) == 2
    assert capsys.readouterr().err == "penstock: no command pipeline 'rnu'; did you mean run?\n"


# --- new


def test_samples_are_all_offered() -> None:
    assert set(pipeline_run._SAMPLES) == set(SAMPLES)


@pytest.mark.parametrize(
    ("words", "file", "name"),
    [
        ([], "pipeline.yaml", "pipeline"),
        (["My Shop.yml"], "My Shop.yml", "my-shop"),
        (["_.yaml", "--sample", "delta"], "_.yaml", "pipeline"),
        (["--sample", "python"], "pipeline.py", "pipeline"),
        (["prices.py"], "prices.py", "prices"),
    ],
)
def test_a_sample_is_written_and_fine(
    words: list[str], file: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "new", *words]) == 0
    assert capsys.readouterr().err == f"wrote {file}; next: penstock pipeline check {file}\n"
    assert main(["pipeline", "check", file, "--offline", "--no-spark"]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: {name}: the file is fine; not looked at: brokers and sinks ")


def test_no_file_is_overwritten(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "new", file]) == 2
    assert capsys.readouterr().err == "penstock: shop.yaml exists; name another file, or move it away\n"
    assert Path(file).read_text() == FILE


def test_a_sample_has_its_own_ending(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "new", "shop.yaml", "--sample", "python"]) == 2
    assert capsys.readouterr().err == "penstock: shop.yaml: the sample python is a file that ends in .py\n"
    assert not Path("shop.yaml").exists()


# --- check


def test_all_mistakes_of_a_file_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shop.yaml").write_text("name: shop\nevry: 1s\nsources: {a: {topic: a}}\nsinks: {b: {delt: x}}\n")
    assert main(["pipeline", "check", "shop.yaml"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["shop.yaml:2", "shop.yaml:4"]


def test_findings_for_scripts(file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def check_static(_spec: Spec, *, reach: bool) -> list[Finding]:
        asked.append(reach)
        return [Finding(Place("shop.yaml", 2), "source orders: gone"), Finding(None, "no Java")]

    monkeypatch.setattr(check, "check_static", check_static)
    assert main(["pipeline", "check", file, "--no-spark", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "file": "shop.yaml",
        "pipeline": "shop",
        "fine": False,
        "unchecked": ["queries and columns (--no-spark)"],
        "findings": [
            {"file": "shop.yaml", "line": 2, "text": "source orders: gone"},
            {"file": None, "line": None, "text": "no Java"},
        ],
    }
    main(["pipeline", "check", file, "--no-spark", "--offline"])
    assert asked == [True, False]


def test_what_spark_says_comes_with_the_rest_and_nothing_twice(
    file: str, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Finding(Place("shop.yaml", 4), "step clean: no function")
    monkeypatch.setattr(check, "check_static", lambda _spec, *, reach: [both])
    monkeypatch.setattr(
        check, "check_analysed", lambda _spec, _spark: [both, Finding(Place("shop.yaml", 5), "lake: no")]
    )
    assert main(["pipeline", "check", file]) == 1
    assert capsys.readouterr().out == "shop.yaml:4: step clean: no function\nshop.yaml:5: lake: no\n"
    assert spark.stopped == 1


@pytest.mark.parametrize(
    ("refusal", "code"), [(NotInstalled("pyspark is not installed"), 2), (PipelineError("Spark does not start"), 1)]
)
def test_without_spark_the_rest_is_still_told(
    refusal: PipelineError, code: int, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_session(_master: str, _conf: object) -> None:
        raise refusal

    monkeypatch.setattr(sessions, "open_session", open_session)
    assert main(["pipeline", "check", file, "--offline"]) == code
    assert capsys.readouterr().out == f"{refusal}; --no-spark leaves queries unchecked\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], " is fine"),
        (["--no-spark"], ": the file, brokers and sinks are fine; not looked at: queries and columns (--no-spark)"),
        (["--offline"], ": the file and its queries are fine; not looked at: brokers and sinks (--offline)"),
        (
            ["--offline", "--no-spark"],
            ": the file is fine; not looked at: brokers and sinks (--offline), queries and columns (--no-spark)",
        ),
    ],
)
def test_a_pipeline_that_is_fine(
    file: str,
    words: list[str],
    told: str,
    spark: FakeSpark,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(check, "check_static", lambda _spec, *, reach: [])
    monkeypatch.setattr(check, "check_analysed", lambda _spec, _spark: [])
    assert main(["pipeline", "check", file, *words]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"shop.yaml: shop{told}",
        "  sources       orders (topic orders)",
        "  steps         clean (SQL)",
        "  sinks         lake (parquet ./lake)",
        "  dead letters  topic shop.dead",
    ]


# --- run


def test_a_run_that_finishes(
    file: str, home: Path, fake_run: type[FakeRun], spark: FakeSpark, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "run", file, "--once"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "shop finished: 1,200 rows, 3 batches, 1 dead letter since it began"
    assert [line.partition(" ")[2] for line in err.splitlines()[:2]] == ["shop: starting Spark", "shop: checking"]
    (made,) = fake_run.made
    assert made.once
    assert made.directory.path == home / "shop"
    assert (made.stops, spark.stopped) == (0, 1)


def test_master_and_settings(file: str, fake_run: type[FakeRun], monkeypatch: pytest.MonkeyPatch) -> None:
    Path(file).write_text(f"{FILE}spark: {{spark.sql.shuffle.partitions: 4, spark.x: file}}\n")
    asked: list[Any] = []

    def open_session(master: str, conf: object) -> FakeSpark:
        asked.append((master, conf))
        return FakeSpark()

    monkeypatch.setattr(sessions, "open_session", open_session)
    assert main(["pipeline", "run", file, "--master", "spark://h:7077", "--conf", "spark.x=flag"]) == 0
    assert asked == [("spark://h:7077", {"spark.sql.shuffle.partitions": "4", "spark.x": "flag"})]


def test_a_failure_is_one_line(
    file: str, fake_run: type[FakeRun], spark: FakeSpark, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run.failure = PipelineError("sink lake: no room\nfor anything")
    assert main(["pipeline", "run", file]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "penstock: sink lake: no room for anything"
    assert spark.stopped == 1


def test_mistakes_found_at_the_start_have_a_line_each(
    file: str, fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run.refusal = SpecError(
        [Finding(Place("shop.yaml", 4), "no column"), Finding(Place("shop.yaml", 5), "no sink")]
    )
    assert main(["pipeline", "run", file]) == 2
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "shop.yaml:4: no column",
        "shop.yaml:5: no sink",
        "penstock: 2 mistakes in the pipeline's file, see above",
    ]


def test_what_somebody_else_runs_is_told_before_spark_starts(
    file: str, home: Path, fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    with Home(home).pipeline("shop").locked("run"):
        assert main(["pipeline", "run", file]) == 1
    assert f"pipeline shop is at work in process {os.getpid()} (run)" in capsys.readouterr().err
    assert fake_run.made == []


def test_a_wrong_file_is_told_before_spark_starts(fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]) -> None:
    Path("shop.yaml").write_text(FILE.replace("sql: SELECT id FROM orders", "python: none.py:clean, inputs: [orders]"))
    assert main(["pipeline", "run", "shop.yaml"]) == 2
    assert "none.py" in capsys.readouterr().err
    assert fake_run.made == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_its_batch(
    number: signal.Signals, file: str, fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    fake_run.during = staticmethod(lambda _run: os.kill(os.getpid(), number))
    assert main(["pipeline", "run", file]) == 0
    assert fake_run.made[0].stops == 1
    assert "stopping after the micro-batch at work; once more ends it at once" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_ctrl_c_before_it_has_begun(
    file: str, fake_run: type[FakeRun], spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_run: FakeRun) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fake_run, "start", start)
    assert main(["pipeline", "run", file]) == 130
    assert spark.stopped == 1


class Told:
    """A view that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def tell(self, text: str) -> None:
        self.said.append(text)

    def tick(self) -> None:
        pass

    def close(self) -> None:
        self.said.append("closed")


def test_a_second_signal_leaves_at_once() -> None:
    left: list[Any] = []
    stops, view = Stops(), Told()

    class Endless:
        stopped = 0

        def wait(self, _timeout_s: float) -> bool:
            stops.count += 1
            assert stops.count < 3
            return False

        def stop(self) -> None:
            self.stopped += 1

    run: Any = Endless()
    follow(run, view, stops, left.append)  # type: ignore[arg-type]
    assert left == [130]
    assert run.stopped == 1
    assert view.said[-1] == "closed"


def test_health_while_it_runs(file: str, fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]) -> None:
    answers = []

    def ask(_run: FakeRun) -> None:
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "health and metrics at" in each]
        with urllib.request.urlopen(f"{line.split()[-1]}/health", timeout=30) as answer:  # noqa: S310 - our own
            answers.append(json.load(answer))

    fake_run.during = staticmethod(ask)
    assert main(["pipeline", "run", file, "--http", "127.0.0.1:0"]) == 0
    assert "shop" in json.dumps(answers)


def test_an_http_address_that_is_none(file: str, fake_run: type[FakeRun], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", file, "--http", "here"]) == 2
    assert "'here' is no HOST:PORT" in capsys.readouterr().err
    assert fake_run.made == []


def test_a_setting_that_is_none(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", file, "--conf", "spark.x"]) == 2
    assert capsys.readouterr().err == "penstock: 'spark.x' is no KEY=VALUE\n"
