"""What is in the output and ought to be: every record of every key once, in the order it was written."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Output(NamedTuple):
    """A record as a reader of committed records sees it."""

    key: bytes
    value: bytes


def key_of(number: int) -> bytes:
    return b"key-%d" % number


def value_of(number: int, at: int) -> bytes:
    return b"%d:%d" % (number, at)


def violations(written: Mapping[int, int], partitions: Sequence[Sequence[Output]]) -> list[str]:
    """One line for each thing that is wrong.

    Args:
        written: how many records each key has.
        partitions: the output.
    """
    found: list[str] = []
    counts = Counter(record for records in partitions for record in records)
    wanted = [Output(key_of(key), value_of(key, at)) for key, count in written.items() for at in range(count)]
    found += [f"lost: {record.value!r}" for record in wanted if not counts[record]]
    found += [f"{counts[record]} times: {record.value!r}" for record in wanted if counts[record] > 1]
    found += [f"from nowhere: {record}" for record in counts.keys() - set(wanted)]
    places: dict[bytes, set[int]] = {}
    for number, records in enumerate(partitions):
        latest: dict[bytes, Output] = {}
        for record in records:
            places.setdefault(record.key, set()).add(number)
            before = latest.get(record.key)
            if before is not None and _place(before) > _place(record):
                found.append(f"out of order: {record.value!r} behind {before.value!r}")
            latest[record.key] = record
    found += [f"in several partitions: {key!r} in {sorted(where)}" for key, where in places.items() if len(where) > 1]
    return found


def _place(record: Output) -> int:
    return int(record.value.partition(b":")[2])


def report(found: Sequence[str], most: int = 20) -> str:
    kinds = Counter(line.partition(":")[0] for line in found)
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return "\n".join([summary, *found[:most], *(["..."] if len(found) > most else [])])
