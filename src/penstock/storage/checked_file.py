"""Small files that are replaced whole: a kind, a format version, the payload and a CRC-32C over all of it."""

from itertools import islice
from struct import Struct

from crc32c import crc32c

from penstock.ports.disk import Disk, File

_HEAD = Struct("<4s4sHxxI")  # magic, kind, version, payload size
_CRC = Struct("<I")
_MAGIC = b"PSTK"
TEMPORARY = ".tmp"
_AT_ONCE = 512  # open at the same time: a broker may have a descriptor for each of ten thousand partitions already


class DamagedFile(Exception):
    """The file is not what was written: wrong kind, size or checksum, or a version from the future."""


def encode(kind: bytes, version: int, payload: bytes) -> bytes:
    body = _HEAD.pack(_MAGIC, kind, version, len(payload)) + payload
    return body + _CRC.pack(crc32c(body))


def decode(kind: bytes, newest_version: int, data: bytes, path: str) -> tuple[int, bytes]:
    """The version and payload in `data`.

    Raises:
        DamagedFile: naming `path` and what does not fit.
    """
    if len(data) < _HEAD.size + _CRC.size:
        raise DamagedFile(f"{path}: {len(data)} bytes are too few")
    magic, found_kind, version, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or found_kind != kind:
        raise DamagedFile(f"{path}: starts with {magic + found_kind!r}, not {_MAGIC + kind!r}")
    if len(data) != _HEAD.size + size + _CRC.size:
        raise DamagedFile(f"{path}: {len(data)} bytes, header says {_HEAD.size + size + _CRC.size}")
    body = data[: -_CRC.size]
    if crc32c(body) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise DamagedFile(f"{path}: checksum does not match")
    if version > newest_version:
        raise DamagedFile(f"{path}: format version {version}; this release reads up to {newest_version}")
    return version, body[_HEAD.size :]


def load(disk: Disk, path: str, kind: bytes, newest_version: int) -> bytes:
    """The payload of a checked file. Raises `FileNotFoundError` or `DamagedFile`."""
    file = disk.open(path)
    try:
        data = file.read_at(file.size(), 0)
    finally:
        file.close()
    return decode(kind, newest_version, data, path)[1]


def save(disk: Disk, path: str, kind: bytes, version: int, payload: bytes) -> None:
    """Replace the file durably; a crash leaves the old or the new one, whole."""
    save_all(disk, {path: encode(kind, version, payload)})


def save_all(disk: Disk, contents: dict[str, bytes]) -> None:
    """Replace several files, each atomically, with one sync round for some hundred of them."""
    left = iter(contents.items())
    while group := dict(islice(left, _AT_ONCE)):
        _save_group(disk, group)


def _save_group(disk: Disk, contents: dict[str, bytes]) -> None:
    files: list[File] = []
    try:
        for path, data in contents.items():
            file = disk.open(path + TEMPORARY, create=True)
            files.append(file)
            file.truncate(0)
            file.write_at(data, 0)
        disk.sync_files(files)
    finally:
        for file in files:
            file.close()
    for path in contents:
        disk.rename(path + TEMPORARY, path)
    disk.sync_dirs(sorted({path.rpartition("/")[0] for path in contents}))
