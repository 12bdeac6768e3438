"""A coordinator's state as of an offset of its log, saved beside it, so that a restart replays only what came later.

It holds the same records the log does. Losing it loses nothing: the log is replayed from its start.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile

FILE_NAME = "snapshot"
_KIND = b"snap"
_VERSION = 1
_HEAD = Struct("<q")  # the offset
_RECORD = Struct("<qii")  # producer id or -1, size of the key, size of the value or -1


class SavedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    producer_id: int | None
    """Whose transaction it is part of."""


class Snapshot(NamedTuple):
    offset: int
    """Records below it are in the snapshot, none above."""
    records: list[SavedRecord]


def encode_record(record: SavedRecord) -> bytes:
    producer_id = -1 if record.producer_id is None else record.producer_id
    value_size = -1 if record.value is None else len(record.value)
    head = _RECORD.pack(producer_id, len(record.key), value_size)
    return head + record.key + (record.value or b"")


def save_snapshot(disk: Disk, directory: str, offset: int, encoded: Iterable[bytes]) -> None:
    """Replace the snapshot durably. Everything below `offset` must be durable already. Blocking."""
    payload = b"".join((_HEAD.pack(offset), *encoded))
    checked_file.save(disk, f"{directory}/{FILE_NAME}", _KIND, _VERSION, payload)


def load_snapshot(disk: Disk, directory: str) -> Snapshot | None:
    """The saved snapshot, or None when there is none. Raises `DamagedFile`. Blocking."""
    path = f"{directory}/{FILE_NAME}"
    try:
        payload = checked_file.load(disk, path, _KIND, _VERSION)
        return Snapshot(_HEAD.unpack_from(payload)[0], list(_records(payload)))
    except FileNotFoundError:
        return None
    except StructError as error:
        raise DamagedFile(f"{path}: {error}") from None


def _records(payload: bytes) -> Iterator[SavedRecord]:
    position = _HEAD.size
    while position < len(payload):
        producer_id, key_size, value_size = _RECORD.unpack_from(payload, position)
        position += _RECORD.size
        key = payload[position : position + key_size]
        position += key_size
        value = None if value_size < 0 else payload[position : position + value_size]
        position += max(value_size, 0)
        yield SavedRecord(key, value, None if producer_id < 0 else producer_id)
