"""What Spark needs on this machine, found without starting it: a Java that is new enough, and pyspark."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.extras import install_line
from penstock.spark.errors import SourceError

OLDEST_JAVA = 17
"""What Spark 4 is compiled for."""
GET_JAVA = (
    "Install one, on Debian or Ubuntu with 'apt-get install openjdk-17-jre-headless' (or default-jre-headless), and "
    "name it with JAVA_HOME if it is not on the PATH; in a checkout 'make setup' installs it where root allows"
)
GET_PYSPARK = f"install it with: {install_line('spark')}"


class SetupError(SourceError):
    """Something Spark needs is not installed."""


class Java(NamedTuple):
    home: Path
    version: str


class Pyspark(NamedTuple):
    home: Path
    """What Spark's scripts call SPARK_HOME."""
    version: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java that JAVA_HOME names, else the one on the PATH, if it is new enough.

    Raises:
        SetupError: there is none; the message lists what was found, and the way out.
    """
    seen = []
    for place, home in _java_homes(environment):
        version = _java_version(home)
        if version is not None and int(re.split(r"\D", version)[0]) >= OLDEST_JAVA:
            return Java(home, version)
        seen.append(f"{place} is {home}, " + (f"Java {version}" if version else "where no Java can be run"))
    found = "; ".join(seen) or "JAVA_HOME is not set and there is no java on the PATH"
    raise SetupError(f"Spark needs Java {OLDEST_JAVA} or newer: {found}. {GET_JAVA}.")


def find_pyspark(environment: Mapping[str, str] = os.environ) -> Pyspark:
    """The pyspark of this interpreter and the Spark it starts, which SPARK_HOME may put elsewhere.

    Raises:
        SetupError: pyspark is not installed, or SPARK_HOME holds no Spark.
    """
    # Imported here: every Python worker imports this module, and none wants the parser of e-mail this brings.
    from importlib.metadata import version

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(f"pyspark is not installed; {GET_PYSPARK}")
    home = Path(environment.get("SPARK_HOME") or Path(spec.origin).parent)
    if not (home / "bin" / "spark-submit").is_file():
        raise SetupError(f"{home} holds no Spark; unset SPARK_HOME to use the one that pip installed")
    return Pyspark(home, version("pyspark"))


def _java_homes(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    command = shutil.which("java", path=environment.get("PATH", os.defpath))
    if command is not None:
        yield "the java on the PATH", Path(command).resolve().parent.parent


def _java_version(home: Path) -> str | None:
    """From the file `release` that a JDK has, since starting a JVM takes a moment; else from the JVM itself."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return None
    try:
        text = (home / "release").read_text()
    except OSError:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
        text = done.stderr
    # "17.0.15", "21", "25-ea", and "1.8.0_412" for Java 8.
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d[^"]*)"', text)
    return found.group(1) if found else None
