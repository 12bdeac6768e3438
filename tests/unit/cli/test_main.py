"""Finding the command: help, version, mistakes, and how a command ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock import __version__
from penstock.cli import main as cli
from penstock.cli import version
from penstock.cli.failure import CommandError
from penstock.compiled import form
from penstock.errors import Code, PenstockError, StartupError

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
DEADLINE_S = 60


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--version"], ["-V"]):
        assert cli.main(words) == 0
        assert capsys.readouterr().out == f"penstock {__version__}\n"
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__} (records: {form()})\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert cli.main(words) == 0
        text = capsys.readouterr().out
        for name, purpose in cli.COMMANDS.items():
            assert f"  {name} " in text
            assert purpose in text
        assert "PENSTOCK_SERVER" in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_there_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = cli.root.get_command(click.Context(cli.root), name)
    assert command is not None
    assert command.name == name
    assert command.help
    inner = list(command.commands.items()) if isinstance(command, click.Group) else []
    for word, each in inner:
        assert each.help, f"penstock {name} {word} has no help"
    assert cli.main(["help", name]) == 0
    assert f"Usage: penstock {name}" in capsys.readouterr().out


def test_no_words_is_a_mistake_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Usage:" in capsys.readouterr().out


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sevre"]) == 2
    assert capsys.readouterr().err == "penstock: no command 'sevre'; did you mean serve?\n"
    assert cli.main(["qqq"]) == 2
    assert "see penstock --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["version", "--colour"], "No such option '--colour'"),
        (["version", "-o", "xml"], "'xml' is not one of 'table', 'json', 'yaml'"),
        (["topic", "alter"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.startswith("penstock: ") and err.count("\n") == 1
    assert f"See 'penstock {' '.join(word for word in words if word.isalpha() and word != 'xml')} --help'" in err


def test_help_of_serve_names_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "serve"]) == 0
    text = capsys.readouterr().out
    for word in ("--data-dir", "--kafka", "--http", "--config", "--insecure", "limits.max_connections"):
        assert word in text


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (CommandError("no\n  way", code=3), 3, "penstock: no way\n"),
        (StartupError("data_dir = x is locked"), 2, "penstock: data_dir = x is locked\n"),
        (PenstockError(Code.CORRUPT_LOG, "log broken", help="repair it"), 1, "penstock: log broken; repair it\n"),
        (FileNotFoundError(2, "No such file", "/none"), 2, "penstock: /none: No such file; choose another path\n"),
        (OSError(28, "No space left", "/full"), 1, "penstock: /full: No space left\n"),
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"),
            2,
            "penstock: pyspark is not installed: pip install 'penstock-mq[spark]'\n",
        ),
        (click.ClickException("oops"), 1, "penstock: oops\n"),
        (KeyboardInterrupt(), 130, ""),
        (EOFError(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_errors_become_a_line_and_an_exit_code(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(version, "show", fail)
    assert cli.main(["version"]) == code
    assert capsys.readouterr() == ("", told)


def test_a_bug_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(version, "show", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["version"])


@pytest.mark.parametrize("words", [["--help"], ["topic", "--help"], ["sevre"], []])
def test_the_module_is_the_command(words: list[str]) -> None:
    said = [
        subprocess.run([*command, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        for command in ([PENSTOCK], [sys.executable, "-m", "penstock"])
    ]
    assert len({(done.returncode, done.stdout, done.stderr) for done in said}) == 1
    assert said[0].stdout.startswith("Usage: penstock ") or said[0].returncode == 2


@pytest.mark.parametrize("words", [["--help"], ["version"], ["topic", "--help"]])
def test_a_reader_that_has_gone_is_no_failure(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [PENSTOCK, *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PENSTOCK, "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "penstock: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("words", [["topic", "list"], ["topic", "describe", "orders"]])
def test_ctrl_c_ends_a_command_that_waits(words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [PENSTOCK, *words, "--server", address, "--timeout", str(2 * DEADLINE_S)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            probe, _ = silent.accept()
            client, _ = silent.accept()
            with probe, client:
                assert client.recv(1)  # librdkafka asks, and from now on waits
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_costs_only_what_would_have_gone_there(closed: str) -> None:
    command = f"exec {sys.executable} -m penstock.cli.main {{}} {closed}"
    for words, code in (("version", 0), ("tpic", 2)):
        done = subprocess.run(
            ["sh", "-c", command.format(words)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
