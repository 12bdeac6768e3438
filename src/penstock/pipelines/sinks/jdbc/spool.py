"""Where a micro-batch's rows wait for an SQLite database: Arrow files in a hidden directory beside it.

The driver makes a directory for every try of a micro-batch and holds a lock on it as long as it needs it; one whose
lock is free is nobody's, and is removed by whoever finds it. Only files that tasks told the driver of are read.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.parts import Task

from .options import Options
from .parts import Part

if TYPE_CHECKING:
    import pyarrow as pa

_LOCK: Final = "lock"


def _prefix(database: Path, options: Options) -> str:
    whose = hashlib.sha256(f"{options.pipeline}/{options.sink}".encode()).hexdigest()[:16]
    return f".{database.name}.penstock-{whose}-"


@contextlib.contextmanager
def spooling(database: Path, options: Options) -> Iterator[Path]:
    """A directory for one try; it is gone afterwards."""
    directory = database.parent / f"{_prefix(database, options)}{uuid.uuid4().hex}"
    directory.mkdir()
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def sweep(database: Path, options: Options) -> None:
    """Remove directories of drivers that are gone."""
    prefix = _prefix(database, options)
    for each in sorted(database.parent.iterdir()):
        if not each.name.startswith(prefix):
            continue
        with contextlib.suppress(OSError), (each / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(each, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """Writes a task's rows into a file; it is pickled and runs in a worker."""

    directory: str
    sink: str

    def __call__(self, task: Task, batches: "Iterator[pa.RecordBatch]") -> bytes | None:
        import pyarrow as pa

        attempt = uuid.uuid4().hex
        path = Path(self.directory, f"{attempt}.arrow")
        first = next(batches, None)
        if first is None:
            return None
        rows = first.num_rows
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as stream:
                stream.write_batch(first)
                for batch in batches:
                    stream.write_batch(batch)
                    rows += batch.num_rows
        except OSError as error:
            text = f"sink {self.sink}: cannot write {path}: {error}"
            return Part(attempt, trouble=text, retriable=True).encode()
        return Part(attempt, rows, size=path.stat().st_size).encode()


def read_spooled(directory: Path, parts: Sequence[Part], sink: str) -> "Iterator[pa.RecordBatch]":
    """The rows of `parts`.

    Raises:
        SinkError: a file is not there, or not as its task left it.
    """
    import pyarrow as pa

    for part in parts:
        path = directory / f"{part.attempt}.arrow"
        if not path.exists() or os.path.getsize(path) != part.size:
            raise SinkError(
                f"sink {sink}: {path} is not as a task wrote it: SQLite needs all workers on the driver's machine "
                "(master local[*]), as its file is there"
            )
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream
