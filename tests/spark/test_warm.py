"""A warm start, whole: Spark is run to prepare it, and the next Spark uses both halves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 280
SCRIPT = """
import json, sys
from penstock.spark.setup.sessions import session
spark = session("warm", "local[2]", **{"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[1]}"})
def where(_):
    import pyspark
    yield pyspark.__file__
print(json.dumps(spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()))
"""


def _run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_halves_are_used(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    penstock = str(Path(sys.executable).with_name("penstock"))
    facts = json.loads(_run(environment, penstock, "spark", "warm", "-o", "json"))
    log = tmp_path / "classes.log"
    told = _run(environment, sys.executable, "-c", SCRIPT, str(log))
    assert json.loads(told.splitlines()[-1]) == [f"{facts['home']}/python/lib/pyspark.zip/pyspark/__init__.pyc"]
    # The upper layer is the archive named by the option; the JDK's own classes come from the one below it.
    lines = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    archived = sum("shared objects file (top)" in line for line in lines)
    from_jars = sum(" source: file:" in line for line in lines)
    assert archived > 1000
    assert archived > 5 * from_jars
