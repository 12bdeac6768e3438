"""What is on disk, in words and numbers a person or a script can read: segments, batches, records, small files.

Reads only, and copes with a broker at work: a segment is read as far as it went when it was opened.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.ports.disk import Disk
from penstock.records.batch import DELETE_HORIZON, LOG_APPEND_TIME, Header
from penstock.records.compression import Codec, CompressionError
from penstock.records.control import decode_marker
from penstock.records.record import RecordError, iterate_batch
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.job import CLEANED_SUFFIX
from penstock.storage.compaction.swap import FILE_NAME as SWAP_NAME
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.scan import headers
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX
from penstock.storage.log.state import GAPS_KIND, GAPS_NAME, LogState, load_state
from penstock.storage.offline.log_inspection import SNAPSHOT_NAME
from penstock.storage.offline.segment_files import segment_names
from penstock.storage.offline.survey import Stretch, Survey

Facts = dict[str, Any]
_OPEN_LIMIT_BYTES = 1 << 30
_NEWEST_ANY = 0xFFFF
_ANY_OFFSET = 1 << 63
_KINDS = {
    "format": b"frmt",
    "clean-shutdown": b"clsd",
    "log-ends": b"ends",
    "partition.meta": b"part",
    "state": b"stat",
    GAPS_NAME: GAPS_KIND,
    SWAP_NAME: b"swap",
    SNAPSHOT_NAME: b"snap",
}


@dataclass(frozen=True, slots=True)
class Overview:
    """A partition's files at a glance, from cards and headers, without reading the records."""

    log_start: int
    end_offset: int
    size_bytes: int
    segments: list[Facts]


def describe_partition(disk: Disk, path: str) -> Overview:
    state = load_known_state(disk, path)
    segments = []
    names = segment_names(disk.list_dir(path))
    for name in names:
        try:
            segments.append(_describe_segment(disk, path, name, is_last=name == names[-1]))
        except FileNotFoundError:
            continue  # retention took it meanwhile
    start = max(state.log_start if state else 0, segments[0]["base_offset"] if segments else 0)
    end = segments[-1]["next_offset"] if segments else start
    return Overview(start, end, sum(segment["bytes"] for segment in segments), segments)


def _describe_segment(disk: Disk, directory: str, name: str, *, is_last: bool) -> Facts:
    file = disk.open(f"{directory}/{name}{LOG_SUFFIX}")
    try:
        size = file.size()
        card, suffix = load_card(disk, directory, name)
        next_offset, at = (card.next_offset, card.size) if card is not None and card.size <= size else (int(name), 0)
        if at < size:
            for header, _ in headers(file, size, at):
                if header.base_offset < next_offset:  # above it, compaction has left a gap
                    break
                next_offset = header.last_offset + 1
    finally:
        file.close()
    return {
        "segment": f"{name}{LOG_SUFFIX}",
        "base_offset": int(name),
        "next_offset": next_offset,
        "bytes": size,
        "state": "active" if is_last else "sealed" if suffix == INDEX_SUFFIX else "full",
        "card": suffix.lstrip(".") if suffix else None,
        "card_bytes": card.size if card is not None else None,
        "max_timestamp": card.max_timestamp if card is not None and card.max_timestamp >= 0 else None,
    }


def load_card(disk: Disk, directory: str, name: str) -> tuple[Card | None, str | None]:
    """A segment's card, if it can be used, and the suffix it was found under."""
    found = None
    for suffix in (INDEX_SUFFIX, CHECKPOINT_SUFFIX):
        path = f"{directory}/{name}{suffix}"
        try:
            data = _read(disk, path)
        except FileNotFoundError:
            continue
        found = found or suffix
        try:
            card = cards.decode(data, path)
        except DamagedFile:
            continue
        if card.base == int(name):
            return card, suffix
    return None, found


def load_known_state(disk: Disk, directory: str) -> LogState | None:
    """A log's state, if it can be used."""
    try:
        return load_state(disk, directory)
    except (DamagedFile, ValueError, KeyError, TypeError, AssertionError):
        return None


def describe_batches(
    disk: Disk,
    path: str,
    base: int,
    *,
    from_offset: int = 0,
    epochs: LeaderEpochs | None = None,
    gaps_to: int | None = None,
    records: bool = False,
) -> Iterator[Facts]:
    """Every batch of one segment that ends at or behind `from_offset`, damage included.

    Args:
        gaps_to: below this offset the log may have been compacted; None if that is not known, then a card will do.
    """
    directory, _, file_name = path.rpartition("/")
    file = disk.open(path)
    try:
        size = file.size()
        position, next_offset = 0, base
        name = file_name.removesuffix(LOG_SUFFIX)
        is_cleaned = name.endswith(CLEANED_SUFFIX)
        card = load_card(disk, directory, name)[0] if not is_cleaned and name.isdigit() else None
        if is_cleaned or (gaps_to is None and card is not None and card.size == size):
            gaps_to = _ANY_OFFSET
        if card is not None and from_offset > base:
            position = card.position_before(from_offset)
            if position:
                next_offset = base + card.offsets[card.positions.index(position)]
        survey = Survey(file, size, next_offset, position=position, epochs=epochs, gaps_to=gaps_to or 0, card=card)
        for stretch in survey.stretches():
            if stretch.header is None or stretch.next_offset > from_offset:
                yield _describe_stretch(survey, stretch, records)
    finally:
        file.close()


def _describe_stretch(survey: Survey, stretch: Stretch, records: bool) -> Facts:
    place: Facts = {"position": stretch.position, "size": stretch.size, "problem": stretch.problem}
    header = stretch.header
    if header is None:
        return {"base_offset": stretch.first_offset, "last_offset": None, "count": None, "crc_ok": False, **place}
    facts: Facts = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "codec": _codec(header),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.attributes & LOG_APPEND_TIME else "CreateTime",
        "transactional": header.is_transactional,
        "control": header.is_control,
        "marker": None,
        "delete_horizon": header.base_timestamp if header.attributes & DELETE_HORIZON else None,
        "crc": f"{header.crc:08x}",
        "crc_ok": True,
        **place,
    }
    if header.is_control and (marker := decode_marker(survey.data(stretch))) is not None:
        facts["marker"] = marker.name.lower()
    if records:
        try:
            facts["records"] = [
                {
                    "offset": offset,
                    "timestamp": timestamp,
                    **describe_bytes("key", record.key),
                    **describe_bytes("value", record.value),
                    "tombstone": record.value is None and record.key is not None and not header.is_control,
                    "headers": [{"name": name, **describe_bytes("value", value)} for name, value in record.headers],
                }
                for offset, timestamp, record in iterate_batch(survey.data(stretch), _OPEN_LIMIT_BYTES)
            ]
        except (RecordError, CompressionError) as error:
            facts["records"] = []
            facts["problem"] = facts["problem"] or f"cannot be opened: {error}"
    return facts


def describe_bytes(name: str, value: bytes | None) -> Facts:
    """Text where it is UTF-8, else base64 under a name that says so."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def describe_card(disk: Disk, path: str) -> Facts:
    """A `.index` or `.checkpoint`. Raises `DamagedFile`."""
    card = cards.decode(_read(disk, path), path)
    columns = zip(card.offsets, card.positions, card.times, strict=True)
    return {
        "base_offset": card.base,
        "next_offset": card.next_offset,
        "segment_bytes": card.size,
        "max_timestamp": card.max_timestamp,
        "max_timestamp_offset": card.max_timestamp_offset,
        "entries": [
            {"offset": card.base + offset, "position": position, "largest_time_before": time}
            for offset, position, time in columns
        ],
        "open_transactions": [
            {"producer_id": producer_id, "first_offset": first} for producer_id, first in card.transactions.open.items()
        ],
        "aborted_transactions": [row._asdict() for row in card.transactions.aborted()],
        "block_bytes": cards.BLOCK_BYTES,
        "block_sums": [f"{each:08x}" for each in card.sums],
    }


def describe_small_file(disk: Disk, path: str) -> Facts:
    """A file with a name in `_KINDS`. Raises `DamagedFile`."""
    name = path.rpartition("/")[2]
    version, payload = checked_file.decode(_KINDS[name], _NEWEST_ANY, _read(disk, path), path)
    if name == SNAPSHOT_NAME:
        return {"format_version": version, "payload_bytes": len(payload)}
    if name == GAPS_NAME:
        return {"format_version": version}
    facts = orjson.loads(payload)
    if name == SWAP_NAME:
        facts = {"swaps": [{"into": row["into"], "size": row["size"], "replaced": row["from"]} for row in facts]}
    if name == "state":
        fields = ("first_sequence", "last_sequence", "base_offset", "last_offset", "timestamp")
        facts["epochs"] = [{"epoch": epoch, "start_offset": start} for epoch, start in facts["epochs"]]
        facts["producers"] = [
            {
                "producer_id": producer_id,
                "epoch": epoch,
                "seen_ms": seen_ms,
                "batches": [dict(zip(fields, sent, strict=True)) for sent in batches],
                "coordinator_epoch": rest[0] if rest else -1,  # states of before have none
            }
            for producer_id, epoch, seen_ms, batches, *rest in facts["producers"]
        ]
    return {"format_version": version, **facts}


def is_small_file(path: str) -> bool:
    return path.rpartition("/")[2] in _KINDS


def format_time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def _codec(header: Header) -> str:
    try:
        return Codec(header.codec).name.lower()
    except ValueError:
        return f"unknown {header.codec}"


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()
