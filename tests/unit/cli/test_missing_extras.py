"""Commands where no extra is installed: what needs none works, the others name it in one line, with exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 60
BARE = """
import sys
for name in ("aetcd", "deltalake", "fastavro", "google", "grpc", "grpc_status", "msgspec", "numpy", "pandas", "psycopg",
             "pyarrow", "pyiceberg", "pyspark", "scramp"):
    sys.modules[name] = None  # as if it were not there
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
PYSPARK = "pyspark is not installed: pip install 'penstock-mq[spark]'"
CLUSTER = "pip install 'penstock-mq[cluster]'"


def run(place: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-c", BARE, *words],
        cwd=place,
        env={**clean, "HOME": str(place), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for file, more in (("shop.yaml", []), ("lake.yaml", ["--sample", "delta"]), ("shop.py", [])):
        assert run(tmp_path, "pipeline", "new", file, *more).returncode == 0
    return tmp_path


@pytest.mark.parametrize("words", [["check", "shop.yaml", "--no-spark", "--offline"], ["graph", "shop.yaml"], ["list"]])
def test_what_needs_no_extra(words: list[str], place: Path) -> None:
    done = run(place, "pipeline", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pipeline", "check", "shop.yaml", "--offline"], f"{PYSPARK}; --no-spark leaves queries unchecked"),
        (["pipeline", "check", "shop.py", "--offline"], f"shop.py:8: {PYSPARK}"),
        (["pipeline", "check", "lake.yaml", "--offline", "--no-spark"], "deltalake is not installed: pip install"),
        (["pipeline", "run", "shop.yaml"], PYSPARK),
        (["pipeline", "run", "shop.py"], PYSPARK),
        (["pipeline", "run", "lake.yaml"], "deltalake is not installed: pip install 'penstock-mq[pipelines]'"),
        (["pipeline", "start", "shop.yaml"], PYSPARK),
        (["spark", "warm"], "pip install 'penstock-mq[spark]'"),
        (["serve", "--cluster", "etcd://127.0.0.1:1", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"], CLUSTER),
    ],
)
def test_what_needs_one(words: list[str], told: str, place: Path) -> None:
    done = run(place, *words, PENSTOCK_CLUSTER_SECRET="x" * 20)
    assert done.returncode == 2
    assert told in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("\n") == 1
    assert not list(place.glob(".local/**/wanted.json")), "a pipeline that cannot run was asked for"
