"""Batches copied from the leader's log, appended to a follower's: checked again, at the offsets they have there."""

from penstock.errors import Code, PenstockError
from penstock.records.batch import HEADER_BYTES, MAGIC, Header, crc_matches, decode_header
from penstock.storage.log.log import Log

_ANY_EPOCH = (1 << 31) - 1


def append_copied(log: Log, data: memoryview, newest_epoch: int = _ANY_EPOCH) -> None:
    """Write batches of the leader's log at the end, offsets and epochs as they are there.

    What is known of epochs, producers and transactions goes on as it did where they were first appended. If an epoch
    began, or offsets are missing because the leader has compacted them away, the state must be saved before what was
    written counts: `Log.must_save`.

    Args:
        newest_epoch: that of the leader; no batch of its can be of a later one.

    Raises:
        PenstockError: CORRUPT_BATCH, with everything before the bad batch appended; STORAGE_FULL.
    """
    if log.closed:
        raise PenstockError(Code.NOT_AVAILABLE, f"{log.name} is closed")
    position, begun = 0, False
    while position < len(data):
        header, batch = _batch_at(log, data, position, begun, newest_epoch)
        position += len(batch)
        if header.last_offset < log.end_offset:
            continue  # the leader sends whole batches, and this one is here
        begun = True
        if header.base_offset > log.end_offset or header.record_count < 1:
            log.state.gaps_to = header.last_offset + 1
            log.state_changes += 1
        if log.state.epochs.note(header.leader_epoch, header.base_offset):
            log.state_changes += 1
        now_ms = log.write_batch(batch, header, header.base_offset)
        _note(log, header, batch, now_ms)
        log.note_written(log.segments[-1], len(batch), header.record_count)


def _batch_at(log: Log, data: memoryview, position: int, begun: bool, newest_epoch: int) -> tuple[Header, memoryview]:
    """The batch at a position; `begun` says that one before it was new, so that this one must be."""
    why = "is cut short"
    if len(data) - position >= HEADER_BYTES:
        header = decode_header(data, position)
        batch = data[position : position + header.size]
        overlaps = header.base_offset < log.end_offset <= header.last_offset
        again = begun and header.last_offset < log.end_offset
        if header.magic != MAGIC or header.base_offset < 0 or again:
            why = f"of version {header.magic} with offset {header.base_offset} follows one that ends at "
            why += f"{log.end_offset - 1}"
        elif header.size < HEADER_BYTES or len(batch) < header.size:
            why = f"has {header.size} bytes, {len(batch)} of them are there"
        elif overlaps or header.last_offset < header.base_offset:
            why = f"has offsets {header.base_offset} to {header.last_offset}; this replica ends at {log.end_offset}"
        elif header.last_offset >= log.end_offset and header.leader_epoch < log.state.epochs.latest:
            why = f"is of epoch {header.leader_epoch}, older than {log.state.epochs.latest} before it"
        elif header.leader_epoch > newest_epoch:
            why = f"is of epoch {header.leader_epoch}, later than its leader's, {newest_epoch}"
        elif not crc_matches(batch, header):
            why = "does not match its CRC-32C"
        else:
            return header, batch
    raise PenstockError(Code.CORRUPT_BATCH, f"{log.name}: a batch from the leader {why}")


def _note(log: Log, header: Header, batch: memoryview, now_ms: int) -> None:
    log.state.producers.note_batch(header, batch, now_ms)
    if header.is_transactional:
        ended = log.active_transactions.note(header, batch)
        if ended is not None:
            log.ending.append(ended)
        elif log.first_unstable < 0 and not header.is_control:
            log.first_unstable = header.base_offset
