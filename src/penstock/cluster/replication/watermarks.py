"""The high watermarks of replicated partitions, kept over a restart: how far everything is known to be committed.

What is saved may be old, which costs nothing: a high watermark only rises. Losing the file costs that a partition whose
other replicas are away shows nothing until they are back.
"""

from collections.abc import Mapping

import orjson

from penstock.engine.partition import Partition
from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile

FILE_NAME = "high-watermarks"
_KIND = b"hwms"
_VERSION = 1


def watermark_key(partition: Partition) -> str:
    return f"{partition.topic_id}/{partition.index}"


def save_watermarks(disk: Disk, directory: str, watermarks: Mapping[str, int]) -> None:
    """By topic id and partition. Blocking."""
    checked_file.save(disk, f"{directory}/{FILE_NAME}", _KIND, _VERSION, orjson.dumps(dict(watermarks)))


def load_watermarks(disk: Disk, directory: str) -> dict[str, int]:
    """Blocking."""
    try:
        loaded: dict[str, int] = orjson.loads(checked_file.load(disk, f"{directory}/{FILE_NAME}", _KIND, _VERSION))
        return loaded
    except (FileNotFoundError, DamagedFile):
        return {}
