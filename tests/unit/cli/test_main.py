"""Finding the noun: help, version, mistakes."""

import subprocess
import sys

import pytest

from penstock import __version__
from penstock.cli import main as cli


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["version"], ["--version"]):
        assert cli.main(words) == 0
        assert capsys.readouterr().out == f"penstock {__version__}\n"


def test_help_names_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, noun in cli.NOUNS.items():
        assert f"  {name} " in text
        assert noun.purpose in text
    assert "kcat" in text


def test_no_words_is_a_mistake_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Usage:" in capsys.readouterr().out


def test_a_mistyped_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sevre"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err
    assert cli.main(["qqq"]) == 2
    assert "see penstock --help" in capsys.readouterr().err


def test_help_of_a_noun(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["help", "serve"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("--data-dir", "--kafka", "--http", "--config", "--insecure", "limits.max_connections"):
        assert word in text


HEAVY = (
    "asyncio",
    "yaml",
    "pydantic",
    "typer",
    "click",
    "rich",
    "starlette",
    "uvicorn",
    "kio",
    "hypothesis",
    "pyspark",
)


def modules_after(code: str) -> set[str]:
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('modules', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_the_root_command_imports_next_to_nothing() -> None:
    loaded = modules_after("from penstock.cli.main import main; main(['version'])")
    assert not loaded & set(HEAVY)


def test_serve_help_does_not_load_the_broker() -> None:
    loaded = modules_after("from penstock.cli.main import main; main(['serve', '--help'])")
    assert not loaded & (set(HEAVY) - {"asyncio"})
    assert "penstock.server.broker" not in loaded


def test_what_serve_is_made_of_stays_lean() -> None:
    loaded = modules_after("import penstock.cli.serve, penstock.server.http, penstock.observe.metrics")
    unwanted = {
        "yaml",
        "pydantic",
        "pydantic_settings",
        "typer",
        "rich",
        "structlog",
        "hypothesis",
        "pyspark",
        "kio",
    }
    unwanted |= {"pygments", "jinja2", "multipart", "websockets", "psutil", "numpy", "pytest", "sqlalchemy"}
    assert not loaded & unwanted
    assert len(loaded) < 700
