"""`penstock spark`: whether Spark can run here, and how to have it start quickly."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import format_bytes, output_option, progress, show
from penstock.extras import DISTRIBUTION, install_line


@click.group("spark", help="Check what Spark needs on this machine, and make it start faster.")
def command() -> None:
    pass


@command.command(
    "warm",
    help="""Prepare Spark's start once, so that every later one is faster.

    Spark's Python workers compile pyspark anew each time, and its JVM reads some 20,000 classes out of jars. This puts
    a copy of pyspark with bytecode and an archive of those classes into your cache directory ($XDG_CACHE_HOME, or
    ~/.cache, under penstock/spark): about 220 MiB. To find out which classes those are, Spark is run once; that takes
    about a minute.

    Sessions made by penstock.spark.session use it by themselves; for others, -o json shows what to set SPARK_HOME
    (home) and -XX:SharedArchiveFile (archive) to. It belongs to one version of pyspark, Python and Java: after an
    upgrade Spark starts as before, until you call this again. Nothing that is installed is changed.""",
    epilog="""\b
Examples:
  penstock spark warm
  penstock spark warm -o json         with the paths
  penstock spark warm --remove        give the space back""",
)
@click.option("--remove", "removing", is_flag=True, help="Remove what was prepared, for all versions.")
@output_option
def warm_command(removing: bool, output: str) -> None:
    from penstock.spark.setup import warm
    from penstock.spark.setup.installation import find_java, find_pyspark

    if removing:
        size = warm.remove()
        where = warm.cache_directory()
        show({"removed_bytes": size}, output, lambda: click.echo(f"removed {format_bytes(size)} from {where}"))
        return
    with _translated():
        pyspark, java = find_pyspark(), find_java()
        with progress("compiling pyspark", warm.source_bytes(pyspark), unit="bytes") as bar:
            made = warm.prepare(pyspark, java, bar.advance)
        ready = made.archive() is not None
        if not ready:
            with progress("running Spark once"):
                warm.rehearse(made, java)
    facts = {
        "pyspark": pyspark.version,
        "java": java.version,
        "home": str(made.home),
        "archive": str(made.archive()),
        "bytes": made.size_bytes(),
    }
    state = "is warm already" if ready else "is warm"
    text = (
        f"Spark {pyspark.version} on Java {java.version} {state}: {made.directory} ({format_bytes(made.size_bytes())})"
    )
    show(facts, output, lambda: click.echo(text))


class Finding(NamedTuple):
    name: str
    fine: bool
    needed: bool
    text: str
    """What was found, or what is the matter and the way out."""


@command.command(
    "check",
    help="""Check what Spark needs on this machine: Java, pyspark, Penstock's source, a warm start.

    One line each, with what to do if something is missing. The exit code is 0 when Spark can run, else 1.""",
    epilog="""\b
Examples:
  penstock spark check
  penstock spark check -o json""",
)
@output_option
def check(output: str) -> int:
    found = [_check(name, look) for name, look in (("java", _java), ("pyspark", _pyspark), ("source", _source))]
    if all(each.fine for each in found):
        found.append(_warmth())

    def table() -> None:
        for each in found:
            click.echo(f"{'ok' if each.fine else 'no' if each.needed else '--'}  {each.name:8}{each.text}")

    show([each._asdict() for each in found], output, table)
    return FAILED if any(each.needed and not each.fine for each in found) else 0


def _check(name: str, look: Callable[[], str]) -> Finding:
    from penstock.spark.setup.installation import SetupError

    try:
        return Finding(name, True, True, look())
    except SetupError as error:
        return Finding(name, False, True, str(error))


def _java() -> str:
    from penstock.spark.setup.installation import find_java

    java = find_java()
    return f"{java.version} in {java.home}"


def _pyspark() -> str:
    from penstock.spark.setup.installation import SetupError, find_pyspark

    pyspark = find_pyspark()
    if not (4, 2) <= tuple(map(int, pyspark.version.split(".")[:2])) < (4, 4):
        raise SetupError(
            f"{pyspark.version} is not one of 4.2 and 4.3, which Penstock works with; {install_line('spark')}"
        )
    return f"{pyspark.version} in {pyspark.home}"


def _source() -> str:
    from penstock.spark.setup.installation import GET_PYSPARK, SetupError

    missing = [name for name in ("pyarrow", "numpy", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(f"{', '.join(missing)} not installed; {GET_PYSPARK}")
    if importlib.util.find_spec("pyspark_penstock") is None:
        raise SetupError("pyspark_penstock, where Spark looks for it, is not installed; install Penstock anew with pip")
    version = importlib.metadata.version
    return f'format("penstock") of {version(DISTRIBUTION)}, with pyarrow {version("pyarrow")}'


def _warmth() -> Finding:
    from penstock.spark.setup.installation import find_java, find_pyspark
    from penstock.spark.setup.warm import find_warmth

    found = find_warmth(find_pyspark(), find_java())
    if found is None or found.archive() is None:
        return Finding("warm", False, False, "not prepared; 'penstock spark warm' has Spark start faster")
    return Finding("warm", True, False, str(found.directory))


@contextmanager
def _translated() -> Iterator[None]:
    from penstock.spark.setup.installation import SetupError

    try:
        yield
    except SetupError as error:
        raise CommandError(str(error), code=USAGE) from error
