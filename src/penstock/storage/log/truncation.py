"""Taking back the end of a log that its leader does not have, or all of it.

Only a follower does this, to what was never committed. The state is saved first, so that recovery does not take what
goes for a loss; then segments go from the last one on, each card before its file; then the one that holds the cut is
shortened. Wherever a crash strikes, recovery finds a log that ends at the cut or later, and the follower cuts again.
"""

from collections.abc import Iterable

from penstock.ports.disk import Disk
from penstock.storage.checked_file import DamagedFile, save_all
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.log import NEXT_NAME, Log
from penstock.storage.log.recovery import Recovered, recover
from penstock.storage.log.segment import Segment
from penstock.storage.log.state import FILE_NAME, LogState, load_state


def truncate(disk: Disk, log: Log, offset: int, now_ms: int, beside: Iterable[str] = ()) -> Recovered:
    """Take back everything from `offset` on, and what is made of it again. The log is closed and quiet. Blocking.

    A batch that holds `offset` goes whole. Below its start a log is emptied, and begins at `offset`.

    Args:
        beside: names of files in the directory that were made from the log's contents, to be removed.
    """
    if offset < log.log_start:
        return restart(disk, log, offset, now_ms, beside)
    _save_state(disk, log, offset)
    for name in beside:
        _remove(disk, f"{log.directory}/{name}")
    _remove(disk, f"{log.directory}/{NEXT_NAME}")
    for segment in reversed(log.segments):
        if segment.base < offset or segment is log.segments[0]:
            _shorten(disk, segment, offset)
            break
        for path in (segment.index_path, segment.checkpoint_path, segment.path):
            _remove(disk, path)
        disk.sync_dir(log.directory)  # so that never a later one is left without an earlier one
    disk.sync_dir(log.directory)
    return recover(disk, log.directory, log.options, now_ms)


def restart(disk: Disk, log: Log, offset: int, now_ms: int, beside: Iterable[str] = ()) -> Recovered:
    """Empty a log and let it begin at `offset`: its leader has nothing older. Closed and quiet. Blocking."""
    state_path = f"{log.directory}/{FILE_NAME}"
    save_all(disk, {state_path: LogState(log_start=log.log_start).encode()})
    for name in beside:
        _remove(disk, f"{log.directory}/{name}")
    _remove(disk, f"{log.directory}/{NEXT_NAME}")
    for segment in reversed(log.segments):
        for path in (segment.index_path, segment.checkpoint_path, segment.path):
            _remove(disk, path)
        disk.sync_dir(log.directory)
    save_all(disk, {state_path: LogState(log_start=offset, producers_at=offset).encode()})
    return recover(disk, log.directory, log.options, now_ms)


def _save_state(disk: Disk, log: Log, offset: int) -> None:
    """What is known up to the cut; producers as last saved, if that was below it, else recovery reads them."""
    try:
        saved = load_state(disk, log.directory)
    except DamagedFile:
        saved = None
    now = log.state
    epochs = LeaderEpochs(now.epochs.entries)
    epochs.cut_to(offset)
    state = LogState(
        log_start=now.log_start,
        epochs=epochs,
        producers_at=now.log_start,
        compacted_to=min(now.compacted_to, offset),
        gaps_to=min(now.gaps_to, offset),
    )
    if saved is not None and now.log_start <= saved.producers_at <= offset:
        state.producers, state.producers_at = saved.producers, saved.producers_at
    save_all(disk, {f"{log.directory}/{FILE_NAME}": state.encode()})


def _shorten(disk: Disk, segment: Segment, offset: int) -> None:
    if offset >= segment.next_offset:
        return
    if segment.card is None:
        segment.card = segment.load_card(disk)
    file = segment.file or disk.open(segment.path)
    position = segment.find(file, offset)
    for path in (segment.index_path, segment.checkpoint_path):  # they cover what goes
        _remove(disk, path)
    disk.sync_dir(segment.directory)
    file.truncate(position)
    disk.sync_files([file])


def _remove(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.unlink(path)
