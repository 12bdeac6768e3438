"""The life of a `penstock serve` process: ready line, signals, exit codes, refusals."""

import os
import pty
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

STUB = Path(__file__).with_name("stub_broker.py")
DEADLINE_S = 60
READY = "ready kafka=127.0.0.1:19092 http=[::1]:18080"


class Run:
    """One process and the lines it says."""

    def __init__(
        self, behaviour: str, arguments: tuple[str, ...], env: dict[str, str], wrapper: tuple[str, ...] = ()
    ) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, str(STUB), behaviour, "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | env,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.rstrip("\n"))

    def wait_line(self, start: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=left)
            except queue.Empty:
                break
            if line.startswith(start):
                return line
        raise AssertionError(f"no line starting with {start!r}; standard error: {self.errors}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    runs: list[Run] = []

    def begin(behaviour: str, *arguments: str, wrapper: tuple[str, ...] = (), **env: str) -> Run:
        runs.append(Run(behaviour, arguments, env, wrapper))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(start: Start, number: signal.Signals) -> None:
    run = start("plain")
    assert run.wait_line("ready ") == READY
    began = time.monotonic()
    run.send(number)
    run.wait_line("stopped")
    assert run.wait() == 0
    assert time.monotonic() - began < 5
    assert any("stopping signal=" + number.name in line for line in run.errors)


def test_a_start_that_is_open_to_others_says_so_loudly(start: Start) -> None:
    open_to_all = ("--kafka", "0.0.0.0:9092", "--advertise", "broker.example:9092")
    in_plain = ("--cluster", "etcd://10.0.0.2:2379", "--set", "security.mode=closed")
    for arguments, told in ((open_to_all, "kafka at 0.0.0.0:9092"), (in_plain, "etcd://10.0.0.2:2379"), ((), "")):
        run = start("plain", *arguments, "--insecure")
        run.wait_line("ready ")
        run.send(signal.SIGTERM)
        assert run.wait() == 0
        said = [line for line in run.errors if line.startswith("*** INSECURE ***")]
        assert len(said) == (2 if told else 0)
        assert not told or told in said[0]


def test_logs_go_to_standard_error_only(start: Start) -> None:
    run = start("plain", "--log-format", "json")
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    assert run.wait() == 0
    assert any('"event": "stopping"' in line for line in run.errors)
    said = [run.lines.get() for _ in range(run.lines.qsize())]
    assert said == ["stopping", "stopped"]


def test_the_process_is_set_up_for_serving(start: Start) -> None:
    run = start("facts")
    facts = dict(fact.split("=") for fact in run.wait_line("facts ").split()[1:])
    assert facts["loop"].startswith("uvloop")
    assert facts["umask"] == "77"
    assert int(facts["threshold"]) > 700


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    run = start("hang-in-stop")
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    run.wait_line("stopping")
    run.send(signal.SIGINT)
    assert run.wait() == -signal.SIGINT
    assert not any("took too long" in line for line in run.errors)


@pytest.mark.skipif(os.geteuid() != 0, reason="a process table of its own needs root")
def test_a_second_signal_ends_the_first_process_of_a_container(start: Start) -> None:
    run = start("hang-in-stop", wrapper=("unshare", "--pid", "--fork", "--kill-child"))
    run.wait_line("ready ")
    (inner,) = psutil.Process(run.process.pid).children()
    inner.send_signal(signal.SIGTERM)
    run.wait_line("stopping")
    inner.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("behaviour", "line"), [("hang-the-loop", "stopping"), ("hang-in-thread", "stopped")])
def test_a_second_signal_needs_neither_loop_nor_threads(
    start: Start, behaviour: str, line: str, second: signal.Signals
) -> None:
    run = start(behaviour)
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    run.wait_line(line)
    run.send(second)
    assert run.wait() == -second


@pytest.mark.parametrize("behaviour", ["hang-in-stop+hurry", "hang-the-loop+hurry", "hang-in-thread+hurry"])
def test_a_stop_that_hangs_is_cut_short(start: Start, behaviour: str) -> None:
    run = start(behaviour)
    run.wait_line("ready ")
    began = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.wait() == 1
    assert time.monotonic() - began < 15
    assert any("too long" in line or "in time" in line for line in run.errors)


def test_a_stop_that_fails_is_no_clean_exit(start: Start) -> None:
    run = start("fail-in-stop")
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    assert run.wait() == 1
    assert any("clean stop failed" in line for line in run.errors)


def test_a_signal_during_the_start_stops_it(start: Start) -> None:
    run = start("slow-start")
    run.wait_line("starting")
    run.send(signal.SIGTERM)
    run.wait_line("stopped")
    assert run.wait() == 0


def test_a_hangup_loads_certificates_again(start: Start) -> None:
    run = start("certified")
    run.wait_line("ready ")
    for _ in range(2):
        run.send(signal.SIGHUP)
        run.wait_line("reloaded")
    run.send(signal.SIGTERM)
    assert run.wait() == 0


def test_errors_that_python_can_only_print_do_not_flood_the_log(start: Start) -> None:
    run = start("unraisable")
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    assert run.wait() == 0
    told = [line for line in run.errors if "broken" in line]
    assert 1 <= len(told) < 10
    assert all("an error that nobody was told of" in line for line in told)
    assert not any("Traceback" in line for line in run.errors)


def test_without_certificates_a_hangup_ends_it(start: Start) -> None:
    run = start("plain")
    run.wait_line("ready ")
    run.send(signal.SIGHUP)
    assert run.wait() == -signal.SIGHUP


def test_a_failed_broker_exits_without_a_clean_stop(start: Start) -> None:
    run = start("fail")
    assert run.wait() == 1
    assert any("critical" in line and "broker stops itself" in line for line in run.errors)
    assert any("sync failed" in line for line in run.errors)
    said = [run.lines.get() for _ in range(run.lines.qsize())]
    assert "stopping" not in said


def test_a_refused_start_is_one_line(start: Start) -> None:
    run = start("refuse")
    assert run.wait() == 1
    assert run.errors == ["penstock: data_dir = x is locked by process 7"]
    assert run.lines.empty()


@pytest.mark.parametrize(
    ("behaviour", "code", "told"),
    [
        ("misconfigured", 2, "penstock: listeners.kafka = 127.0.0.1:1 cannot be used"),
        ("disk-fails", 1, "penstock: cannot start: /data/logs: Input/output error"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(start: Start, behaviour: str, code: int, told: str) -> None:
    run = start(behaviour)
    assert run.wait() == code
    assert run.errors == [told]
    assert run.lines.empty()


def test_a_bug_in_start_is_told_with_its_traceback(start: Start) -> None:
    run = start("bug")
    assert run.wait() == 1
    assert any("broker could not start" in line for line in run.errors)
    assert any("a bug in start" in line for line in run.errors)


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (("--kafka", "0.0.0.0:9092"), {}, "penstock: listeners.kafka = 0.0.0.0:9092 reaches beyond"),
        (("--node-id", "x"), {}, "penstock: node.id = 'x' (from flag --node-id) is not allowed"),
        (
            ("--set", "nodeid=3"),
            {},
            "penstock: nodeid = '3' (from --set): no such setting; did you mean node.id?",
        ),
        (
            (),
            {"PENSTOCK_LOGGING__LEVEL": "loud"},
            "penstock: logging.level = 'loud' (from PENSTOCK_LOGGING__LEVEL)",
        ),
        (("--config", "/none.yaml"), {}, "penstock: config file /none.yaml cannot be read"),
        (("--set", "oops"), {}, "penstock: --set 'oops': expected key=value"),
        (("--kafka", "1", "--kafka", "2"), {}, "penstock: --kafka is given twice, as 1 and 2; keep one"),
        (
            ("--set", "listeners.kafka=1", "--kafka", "2"),
            {},
            "penstock: listeners.kafka is given twice, by --set as 1 and by --kafka as 2",
        ),
        (
            ("--set", "listeners.kafka=1", "--set", "listeners.kafka=2"),
            {},
            "penstock: --set listeners.kafka is given twice, as 1 and 2",
        ),
    ],
)
def test_bad_settings_are_one_line(
    start: Start, arguments: tuple[str, ...], env: dict[str, str], expected: str
) -> None:
    run = start("plain", *arguments, **env)
    assert run.wait() == 2
    assert len(run.errors) == 1
    assert run.errors[0].startswith(expected)


def test_flags_win_over_environment_and_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("logging: {format: nonsense, level: debug}\n")
    run = start("plain", "--config", str(file), "--log-format", "json", PENSTOCK_LOGGING__FORMAT="rubbish")
    run.wait_line("ready ")


def test_a_stray_variable_is_only_mentioned(start: Start) -> None:
    run = start("plain", PENSTOCK_WEATHER="fine")
    run.wait_line("ready ")
    run.send(signal.SIGTERM)
    assert run.wait() == 0
    assert any("PENSTOCK_WEATHER" in line for line in run.errors)


def test_a_person_at_a_terminal_is_told_what_to_try() -> None:
    mine, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, str(STUB), "plain", "serve"], stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    try:
        while b"Ctrl+C" not in said:
            said += os.read(mine, 4096)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
        os.close(mine)
    text = said.decode()
    assert re.search(r"kcat -b 127\.0\.0\.1:19092 -P", text)
    assert "http://[::1]:18080/metrics" in text
    assert text.startswith("ready ")
