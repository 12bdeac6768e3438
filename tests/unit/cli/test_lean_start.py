"""What a command imports decides how soon it answers: nothing heavy, nothing for tests, Kafka's schemas one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "aiokafka",
    "asyncio",
    "confluent_kafka",
    "cryptography",
    "hypothesis",
    "kio",
    "lz4",
    "numpy",
    "orjson",
    "prometheus_client",
    "pydantic",
    "pyspark",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "uvicorn",
    "uvloop",
    "yaml",
    "zstandard",
}

# Of the client's room: what properties are called, and where secrets come from.
_NAMES_OF_PROPERTIES = {f"penstock.client{name}" for name in ("", ".contexts", ".credentials", ".errors")}


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('modules', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["version"],
        ["topic", "--help"],
        ["topic", "list", "--help"],
        ["produce", "--help"],
        ["consume", "--help"],
        ["tls", "--help"],
        ["tls", "issue", "--help"],
        ["context", "list"],
        ["completion", "bash"],
    ],
)
def test_help_and_small_commands_load_no_client_and_no_broker(words: list[str]) -> None:
    modules = modules_after(f"from penstock.cli.main import main; main({words!r})")
    assert tops(modules) & HEAVY == set()
    own = {name for name in modules if name.startswith("penstock.")} - _NAMES_OF_PROPERTIES
    rooms = {name.split(".")[1] for name in own}
    assert rooms - {"compiled", "records"} == {"cli", "errors"}
    assert not any(name.startswith("penstock.records.") for name in modules)


def test_the_root_s_help_loads_no_command() -> None:
    modules = modules_after("from penstock.cli.main import main; main(['--help'])")
    assert {name for name in modules if name.startswith("penstock.cli.")} == {
        "penstock.cli.main",
        "penstock.cli.failure",
    }
    assert len(modules) < 160


def test_serve_help_does_not_load_the_broker() -> None:
    modules = modules_after("from penstock.cli.main import main; main(['serve', '--help'])")
    assert tops(modules) & (HEAVY - {"asyncio"}) == set()
    assert "penstock.server.broker" not in modules


def test_a_broker_starts_lean() -> None:
    modules = modules_after(
        "import penstock.cli.serve, penstock.server.broker\n"
        "from penstock.protocols.kafka_wire.messages import schema_of\n"
        "schema_of('metadata', 12, 'request')"
    )
    needed = {"asyncio", "kio", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop"}
    unwanted = {"pygments", "jinja2", "multipart", "websockets", "psutil", "pytest", "sqlalchemy"}
    assert tops(modules) & ((HEAVY - needed) | unwanted) == set()
    assert not any(name.startswith("penstock.testing") for name in modules)
    assert len([name for name in modules if name.startswith("kio.schema.")]) < 20
    assert len(modules) < 700


def test_help_is_there_before_a_person_notices() -> None:
    """By CPU time: on a busy machine the clock on the wall tells of the others."""
    penstock = str(Path(sys.executable).with_name("penstock"))
    taken_s = []
    for _ in range(5):
        process = subprocess.Popen([penstock, "--help"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        taken_s.append(usage.ru_utime + usage.ru_stime)
    assert min(taken_s) < 0.3
