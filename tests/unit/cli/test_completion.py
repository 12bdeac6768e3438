"""Completion: the scripts the shells get, and what they are answered."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.contexts import Contexts
from penstock.cli.main import COMMANDS, main
from penstock.client.contexts import Context
from penstock.testing import EmbeddedBroker

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def complete(line: str, **env: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    asked = {
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len((line + ".").split()) - 1),
    }
    done = subprocess.run(
        [PENSTOCK], env=os.environ | asked | env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [offer.partition(",")[2] for offer in done.stdout.split()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "penstock"
    script.write_text(capsys.readouterr().out)
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in script.read_text()
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_in_use_is_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 0
    assert "fish_complete" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["/bin/tcsh", ""])
def test_a_shell_without_completion(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert main(["completion"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
    assert main(["completion", "tcsh"]) == 2


def test_commands() -> None:
    assert complete("penstock ") == list(COMMANDS)
    assert complete("penstock co") == ["consume", "config", "context", "completion"]
    assert complete("penstock topic ") == ["alter", "create", "delete", "describe", "list", "trim"]
    assert complete("penstock nonsense x") == []


def test_options() -> None:
    assert complete("penstock --v") == ["--version"]
    assert complete("penstock topic create --par") == ["--partitions"]
    assert complete("penstock topic list -o ") == ["table", "json", "yaml"]


@pytest.mark.parametrize("line", ["describe", "delete", "alter", "trim", "describe other"])
def test_topic_names(broker: EmbeddedBroker, topic: str, line: str) -> None:
    main(["topic", "create", topic, f"{topic}-b", "--server", broker.bootstrap])
    offered = complete(f"penstock topic {line} {topic}", PENSTOCK_SERVER=broker.bootstrap)
    assert offered == [topic, f"{topic}-b"]


def test_topic_names_of_the_server_on_the_line(broker: EmbeddedBroker, topic: str, closed_port: int) -> None:
    main(["topic", "create", topic, "--server", broker.bootstrap])
    line = f"penstock topic describe --server {broker.bootstrap} {topic[:-1]}"
    assert complete(line, PENSTOCK_SERVER=f"127.0.0.1:{closed_port}") == [topic]


def test_no_server_offers_nothing_and_says_nothing(closed_port: int) -> None:
    assert complete("penstock topic describe ", PENSTOCK_SERVER=f"127.0.0.1:{closed_port}") == []


def test_contexts() -> None:
    contexts = Contexts.load(os.environ)
    contexts.by_name |= {"staging": Context("a:1"), "stable": Context("b:1"), "prod": Context("c:1")}
    contexts.save()
    for line in ("context use", "context remove", "topic list --context"):
        assert complete(f"penstock {line} sta") == ["stable", "staging"]
    contexts.path.write_text("{")
    assert complete("penstock context use ") == []
