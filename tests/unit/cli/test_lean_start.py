"""What a broker imports decides how soon it is ready: nothing heavy, nothing for tests, Kafka's schemas one by one."""

import subprocess
import sys

_SCRIPT = """
import sys
import penstock.cli.serve, penstock.server.broker
from penstock.protocols.kafka.messages import schema_of
schema_of("metadata", 12, "request")
print(" ".join(sys.modules))
"""


def loaded_modules() -> set[str]:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_a_broker_starts_lean() -> None:
    modules = loaded_modules()
    tops = {name.partition(".")[0] for name in modules}
    heavy = {"hypothesis", "lz4", "numpy", "pydantic", "pyspark", "rich", "structlog", "typer", "yaml", "zstandard"}
    assert tops & heavy == set()
    assert not any(name.startswith("penstock.testing") for name in modules)
    assert len([name for name in modules if name.startswith("kio.schema.")]) < 20
    assert len(modules) < 700
