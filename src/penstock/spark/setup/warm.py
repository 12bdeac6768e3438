"""What makes Spark's start quick, prepared once in the user's cache by `penstock spark warm`.

Two things are slow about a first query. Each Python worker compiles pyspark anew, which comes as a zip of sources
without bytecode; and the JVM reads and verifies some 20,000 classes. So the cache holds, for one pyspark, Python and
Java each:

    home/              a SPARK_HOME of links into the real one, but for python/lib/*.zip, copies that have bytecode
    classes-SIZE.jsa   an archive of loaded classes (JEP 350), written by a JVM that has been through rehearsal.py

Neither changes what runs. The directory's name is a hash of what it was made from, so another version finds nothing and
Spark starts as ever; the JVM itself compares the archive with its own build and class path, and does without it if
they differ. It does not notice a file cut short, and crashes; hence the size in the name. The
installation is never written to.
"""

import hashlib
import importlib.util
import marshal
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.spark.setup.installation import Java, Pyspark, SetupError

REHEARSAL_TIMEOUT_S = 600.0
# Flags word of a bytecode file: named by the hash of its source, which nobody needs to check again (PEP 552).
_UNCHECKED_HASH = (1).to_bytes(4, "little")


class Warmth(NamedTuple):
    """What is prepared for one pyspark, Python and Java."""

    directory: Path

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def archive(self) -> Path | None:
        """The archive of classes, if there is one and it is whole."""
        for each in self.directory.glob("classes-*.jsa"):
            if each.name == _archive_name(each):
                return each
        return None

    def jvm_options(self) -> list[str]:
        """What has the JVM use the archive, and say nothing when it cannot."""
        archive = self.archive()
        if archive is None:
            return []
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def size_bytes(self) -> int:
        return sum(each.lstat().st_size for each in self.directory.rglob("*") if stat.S_ISREG(each.lstat().st_mode))


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where everything prepared lies: under XDG_CACHE_HOME, else ~/.cache."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "spark"


def find_warmth(pyspark: Pyspark, java: Java) -> Warmth | None:
    """What `prepare` made for these, if it did."""
    try:
        found = Warmth(_directory(pyspark, java))
        return found if found.home.is_dir() and _is_private(found.directory) else None
    except (OSError, RuntimeError):  # no home directory, or one that cannot be read: a cache is no reason to fail
        return None


def prepare(pyspark: Pyspark, java: Java, compiled: Callable[[int], None] = lambda _: None) -> Warmth:
    """Make the copy with bytecode, unless it is there. `rehearse` adds the JVM's half.

    Args:
        compiled: told after every module, how many bytes of source that was.

    Raises:
        SetupError: the cache cannot be trusted, because others may write to it.
    """
    wanted = Warmth(_directory(pyspark, java))
    wanted.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(wanted.directory):
        raise SetupError(
            f"{wanted.directory} belongs to or can be written by others, who could change what Spark runs; remove it"
        )
    if wanted.home.is_dir():
        return wanted
    fresh = Path(tempfile.mkdtemp(prefix="fresh-", dir=wanted.directory))
    try:
        _link(pyspark.home, fresh, but=("python", "__pycache__"))
        _link(pyspark.home / "python", fresh / "python", but=("lib",))
        (fresh / "python" / "lib").mkdir()
        for source in _sources(pyspark):
            place = Path("python", "lib", source.name)
            _compile(source, fresh / place, wanted.home / place, compiled)
            _sync(fresh / place)
        try:
            fresh.rename(wanted.home)
        except OSError:
            if not wanted.home.is_dir():  # else somebody else was quicker
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return wanted


def source_bytes(pyspark: Pyspark) -> int:
    """How much source `prepare` has to compile."""
    return sum(entry.file_size for source in _sources(pyspark) for entry in _modules(source))


def rehearse(warmth: Warmth, java: Java) -> None:
    """Run Spark once through rehearsal.py, so that its JVM writes the archive.

    Raises:
        SetupError: it failed; the message has the end of what it said.
    """
    fresh = warmth.directory / f"fresh-{os.getpid()}.jsa"
    environment = {**os.environ, "JAVA_HOME": str(java.home), "SPARK_HOME": str(warmth.home)}
    command = [sys.executable, "-m", "penstock.spark.setup.rehearsal", str(fresh)]
    try:
        # The JVM outlives the Python that started it while it writes the archive. It holds the pipe open until then.
        done = subprocess.run(  # noqa: S603 - our own module
            command, env=environment, capture_output=True, text=True, check=False, timeout=REHEARSAL_TIMEOUT_S
        )
        if done.returncode != 0 or not fresh.is_file():
            raise SetupError(f"Spark did not run ({' '.join(command)}): {done.stderr.strip()[-600:]}")
        _sync(fresh)
        fresh.replace(warmth.directory / _archive_name(fresh))
    except subprocess.TimeoutExpired as late:
        raise SetupError(f"Spark was not done after {late.timeout:.0f} s ({' '.join(command)})") from late
    finally:
        fresh.unlink(missing_ok=True)


def remove() -> int:
    """Remove everything prepared, for all versions; returns how many bytes that was."""
    directory = cache_directory()
    found = [Warmth(each) for each in directory.iterdir()] if directory.is_dir() else []
    size = sum(each.size_bytes() for each in found)
    for each in found:
        shutil.rmtree(each.directory)
    return size


def _directory(pyspark: Pyspark, java: Java) -> Path:
    made_from = [pyspark.version, str(pyspark.home), importlib.util.MAGIC_NUMBER.hex(), str(java.home), java.version]
    for source in _sources(pyspark):
        found = source.stat()
        made_from.append(f"{source.name} {found.st_size} {found.st_mtime_ns}")
    name = hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:12]
    return cache_directory() / f"{pyspark.version}-{sys.implementation.cache_tag}-{name}"


def _sync(file: Path) -> None:
    """On the device before it gets its name: what a power cut leaves is whole, or not there."""
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _archive_name(file: Path) -> str:
    return f"classes-{file.stat().st_size}.jsa"


def _is_private(directory: Path) -> bool:
    found = directory.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _sources(pyspark: Pyspark) -> list[Path]:
    return sorted((pyspark.home / "python" / "lib").glob("*.zip"))


def _link(source: Path, target: Path, *, but: tuple[str, ...]) -> None:
    target.mkdir(exist_ok=True)
    for each in source.iterdir():
        if each.name not in but:
            (target / each.name).symlink_to(each)


def _modules(source: Path) -> Iterator[zipfile.ZipInfo]:
    with zipfile.ZipFile(source) as archive:
        yield from (entry for entry in archive.infolist() if entry.filename.endswith(".py"))


def _compile(source: Path, target: Path, name: Path, compiled: Callable[[int], None]) -> None:
    """Copy a zip of modules, with the bytecode beside each; `name` is what a traceback shall call it."""
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # pyspark's own, about its own sources
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry, data, zipfile.ZIP_DEFLATED)
            if not entry.filename.endswith(".py"):
                continue
            code = marshal.dumps(compile(data, f"{name}/{entry.filename}", "exec", dont_inherit=True))
            head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(data)
            # Not compressed: it is read more often than it is kept.
            new.writestr(zipfile.ZipInfo(f"{entry.filename}c", entry.date_time), head + code, zipfile.ZIP_STORED)
            compiled(entry.file_size)
