"""Where a task's files go: a directory on this machine's disks (or a shared one), or an object store.

What a storage holds is plain data, for it travels to the tasks. A file that `seal` returned for is there after a crash
of the machine; one that was never named to anybody does no harm.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.home.sealed import sync_directory

if TYPE_CHECKING:
    from penstock.pipelines.sinks.contract import Context

_NEEDS_A_PERSON: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}
)

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def may_pass(error: OSError) -> bool:
    """Whether what failed may be asked again: a full disk is emptied, a share comes back; a missing right does not."""
    return error.errno not in _NEEDS_A_PERSON


@contextlib.contextmanager
def as_sink_trouble(sink: str, place: str | Path) -> Iterator[None]:
    """Raises `SinkUnavailable` for trouble that may pass, as a full disk, and `SinkError` for other trouble."""
    try:
        yield
    except OSError as error:
        kind = SinkUnavailable if may_pass(error) else SinkError
        raise kind(f"sink {sink}: {error.filename or place}: {one_line(error.strerror or error)}") from error


def one_line(said: object) -> str:
    """What a library said, without its colours and line breaks."""
    return " ".join(_COLOUR.sub("", str(said)).split())


class Storage(Protocol):
    """Makes files under paths relative to it."""

    def place(self, path: str) -> str:
        """Where a file is, for people."""
        ...

    def create(self, path: str) -> IO[bytes]:
        """A new file, its directories with it."""
        ...

    def seal(self, path: str, file: IO[bytes]) -> None:
        """Close the file, for good."""
        ...

    def remove(self, path: str) -> None:
        """Take back a file that nobody was told of; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """A directory. With `flat`, files lie right in it, whatever directories their paths name."""

    root: str
    flat: bool = False

    def place(self, path: str) -> str:
        return str(self._place(path))

    def create(self, path: str) -> IO[bytes]:
        place = self._place(path)
        make_directories(place.parent)
        return open(place, "xb")

    def seal(self, path: str, file: IO[bytes]) -> None:
        try:
            file.flush()
            os.fsync(file.fileno())
        finally:
            file.close()
        sync_directory(self._place(path).parent)

    def remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._place(path).unlink(missing_ok=True)

    def _place(self, path: str) -> Path:
        return Path(self.root, path.rpartition("/")[2] if self.flat else path)


@dataclass(frozen=True, slots=True)
class DeltaStorage:
    """A Delta table's directory in an object store, by the store that `deltalake` itself uses."""

    uri: str
    options: Mapping[str, str] = field(repr=False)

    def place(self, path: str) -> str:
        return f"{self.uri}/{path}"

    def create(self, path: str) -> IO[bytes]:
        stream: IO[bytes] = self._filesystem().open_output_stream(path)
        return stream

    def seal(self, path: str, file: IO[bytes]) -> None:
        file.close()

    def remove(self, path: str) -> None:
        with contextlib.suppress(Exception):
            self._filesystem().delete_file(path)

    def _filesystem(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.uri, options=dict(self.options)))


@dataclass(frozen=True, slots=True)
class IcebergStorage:
    """An Iceberg table's data location, by the FileIO that its catalog's properties name."""

    location: str
    properties: Mapping[str, str] = field(repr=False)

    def place(self, path: str) -> str:
        return f"{self.location}/{path}"

    def create(self, path: str) -> IO[bytes]:
        stream: IO[bytes] = self._io().new_output(self.place(path)).create()
        return stream

    def seal(self, path: str, file: IO[bytes]) -> None:
        file.close()

    def remove(self, path: str) -> None:
        with contextlib.suppress(Exception):
            self._io().delete(self.place(path))

    def _io(self) -> Any:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.properties), self.location)


def local_path(text: str) -> Path | None:
    """The path that a path or a `file:` URI names; None where it is in an object store."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None if "://" in text else Path(text)


def destination(context: "Context", text: str) -> str:
    """What a sink's path or URI means: a path is taken from the pipeline's directory."""
    path = local_path(text)
    return text if path is None else str(Path(os.path.abspath(context.directory / path.expanduser())))


def make_directories(path: Path) -> None:
    """Make a directory and those above it, so that they outlast a crash."""
    if path.is_dir():
        return
    make_directories(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    sync_directory(path.parent)


def sync_files(paths: Iterable[Path]) -> None:
    """Make files durable that somebody else wrote, and their names."""
    directories = set()
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        directories.add(path.parent)
    for each in directories:
        sync_directory(each)
