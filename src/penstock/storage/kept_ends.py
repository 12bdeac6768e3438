"""DIR/meta/log-ends: how far each log of a broker on its own is known to be durable, kept apart from the logs.

A partition directory that was put back from an old copy is sound by itself; only somebody else can know that it once
reached further. What is kept may be some seconds old: it is a lower bound, and a power cut never takes a log below it.
By topic id, so that a topic made anew under an old name begins anew.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import orjson

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile

FILE_NAME = "log-ends"
_KIND = b"ends"
_VERSION = 1

Ends = Mapping[UUID, Sequence[int]]
"""For each topic the ends of its partitions in their order; 0 where none is known."""


def save_ends(disk: Disk, directory: str, ends: Ends) -> None:
    """Durably, all or nothing. Blocking.

    Args:
        directory: that of the metadata; made if it is not there.
    """
    payload = orjson.dumps(dict(ends), option=orjson.OPT_NON_STR_KEYS)
    if not disk.is_dir(directory):
        disk.make_dirs(directory)
    checked_file.save(disk, f"{directory}/{FILE_NAME}", _KIND, _VERSION, payload)


def load_ends(disk: Disk, directory: str) -> dict[UUID, list[int]]:
    """Empty if there is no file: a directory of an earlier release has none. Blocking.

    Raises:
        DamagedFile: naming the file and what does not fit.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        told = orjson.loads(checked_file.load(disk, path, _KIND, _VERSION))
        return {UUID(topic_id): [int(end) for end in ends] for topic_id, ends in told.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path}: {error}") from error


def end_of(ends: Ends, topic_id: UUID, partition: int) -> int:
    """What is kept of one partition; 0 if nothing is."""
    of_topic = ends.get(topic_id, ())
    return of_topic[partition] if partition < len(of_topic) else 0
