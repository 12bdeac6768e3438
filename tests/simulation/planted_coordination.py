"""Bugs planted in coordinators, transactions and groups; see `planted.py`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from penstock.engine.coordination.outcome import Outcome, Reply
from penstock.engine.coordination.shard import Shard
from penstock.engine.coordination.snapshot import SavedRecord, encode_record, save_snapshot
from penstock.engine.groups.classic import ClassicGroup
from penstock.engine.groups.offsets import Offsets
from penstock.engine.partition import Partition
from penstock.engine.replicas import Replicas
from penstock.engine.transactions import refusals
from penstock.engine.transactions.machine import TransactionMachine
from penstock.engine.transactions.requests import EndRequest
from penstock.engine.transactions.transaction import ProducerIdentity, Transaction
from penstock.engine.transactions.transactions import Transactions
from penstock.errors import Code, PenstockError
from penstock.storage.log.producers import Producers
from penstock.storage.log.reading import read_batches
from tests.simulation.planted import Planted, _both, _instead

# --- coordinators


async def _replay_what_is_known_to_be_committed(self: Shard[Any]) -> Any:
    """As a new leader knows it before anybody has fetched from it: not all there is."""
    log, epoch, end = self.partition.opened(), self.partition.leader_epoch, self.partition.high_watermark
    machine = self._make(self._around.clock.now_ms())
    offset = log.log_start
    while offset < end:
        stretch = await self._around.disk.run(read_batches, log, offset, end, 1 << 20)
        for batch in stretch.batches:
            self._replay_batch(machine, batch, offset)
        offset = stretch.next_offset
    if self.partition.led is not log or self.partition.leader_epoch != epoch:
        raise PenstockError(Code.NOT_COORDINATOR, "another broker leads")
    return machine


_carry_out = Shard._carry_out


def _carry_out_and_tell(self: Shard[Any], machine: Any, outcome: Outcome, *more: Any) -> None:
    for token, answer in outcome.replies:
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done() and not isinstance(answer, Exception):
            waiting.set_result(answer)
    _carry_out(self, machine, outcome, *more)


def _told_for_ever(self: Shard[Any], machine: Any, replies: Sequence[Reply], duty: Callable[[], None] | None) -> None:
    for token, answer in replies:
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done() and not isinstance(answer, Exception):
            waiting.set_result(answer)
    if duty is not None:
        duty()


def _lost_and_kept(self: Shard[Any]) -> None:
    """The machine of an earlier term goes on when this broker leads again."""
    machine, tried = self._machine, self._tried.is_set()
    _lost(self)
    self._machine = machine
    if tried:
        self._tried.set()


_lost = Shard.lost


def _keep_machine(self: Shard[Any]) -> None:
    if not self._closed and self._machine is None:
        self._begin_loading()


async def _save_at_once(self: Shard[Any]) -> None:
    """Without waiting until what is in it is committed."""
    machine, log = self._machine, self.partition.log
    if machine is None or log is None or self._since_snapshot == 0:
        return
    encoded = [encode_record(SavedRecord(*self._codec.encode(entry), owner)) for entry, owner in machine.dump()]
    self._since_snapshot = 0
    await self._around.disk.run(save_snapshot, self._around.disk, log.directory, log.end_offset, encoded)


async def _take_back_and_keep_snapshot(self: Replicas, partition: Partition, offset: int) -> None:
    with patch("penstock.engine.replicas.SNAPSHOT", "not-the-snapshot"):
        await _take_back(self, partition, offset)


_take_back = Replicas.take_back


# --- transactions


def _check_marker_by_producer(self: Producers, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
    _check_marker(self, producer_id, epoch, -1)


_check_marker = Producers.check_marker


def _check_marker_never(self: Producers, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
    """Any marker is as good as another."""


def _check_current_by_id(transaction: Transaction, claimed: ProducerIdentity) -> None:
    _check_current(transaction, ProducerIdentity(claimed.producer_id, transaction.identity.producer_epoch))


_check_current = refusals.check_current


def _end_of_any_epoch(self: TransactionMachine, now: int, transaction: Transaction, request: EndRequest) -> Any:
    if request.producer_id == transaction.identity.producer_id:
        request = request._replace(producer_epoch=transaction.identity.producer_epoch)
    return _end_with_bump(self, now, transaction, request)


_end_with_bump = TransactionMachine._end_with_bump


async def _write_markers_once(self: Transactions, shard: Any, machine: Any, due: Any) -> None:
    left = [(named.topic, index) for named in due.partitions for index in named.partition_ids]
    await self._write_some(due, left)
    if shard.loaded is machine:
        shard.step(lambda one, now: one.markers_written(now, due.transactional_id, due.producer_id, due.producer_epoch))


def _visible_at_once(written: Any) -> "asyncio.Future[None]":
    return asyncio.ensure_future(asyncio.sleep(0))


def _replay_without_due(self: TransactionMachine, *arguments: Any) -> None:
    _replay(self, *arguments)
    self._due.clear()


_replay = TransactionMachine.replay


def _init_unfenced(self: Transaction, now: int, timeout_ms: int, identity: ProducerIdentity, previous: int) -> Any:
    return _initialized(self, now, timeout_ms, ProducerIdentity(self.producer_id, self.producer_epoch), previous)


_initialized = Transaction.initialized


# --- groups


def _end_without_abort(self: Offsets, producer_id: int, *, committed: bool) -> list[str]:
    return _end_offsets(self, producer_id, committed=True)


_end_offsets = Offsets.end


PLANTED_COORDINATION: dict[str, Planted] = {
    "late_marker": Planted(
        "a marker of a coordinator that was deposed ends whatever transaction is open",
        _instead(Producers, "check_marker", _check_marker_never),
    ),
    "deposed_coordinator_marker": Planted(
        "a partition does not ask which coordinator a marker is from",
        _instead(Producers, "check_marker", _check_marker_by_producer),
    ),
    "late_end": Planted(
        "an end in a stale epoch ends the transaction under way (KIP-890)",
        _instead(TransactionMachine, "_end_with_bump", _end_of_any_epoch),
    ),
    "zombie_not_fenced": Planted(
        "a coordinator looks at producer ids and not at epochs",
        _instead(refusals, "check_current", _check_current_by_id),
    ),
    "init_keeps_the_epoch": Planted(
        "a producer that comes anew has the epoch of the one before",
        _instead(Transaction, "initialized", _init_unfenced),
    ),
    "guard_ignored": Planted(
        "a batch is appended although a marker came after its coordinator was asked",
        _instead(Transactions, "check_guard", lambda *_: None),
    ),
    "unverified_batches": Planted(
        "a transaction's first batch in a partition is taken without asking the coordinator",
        _instead(Partition, "is_in_transaction", lambda self, header: self.leading() is not None),
    ),
    "stale_lso": Planted(
        "readers of committed records stop at the high watermark",
        _instead(Partition, "stable_offset", property(lambda self: self.high_watermark)),
    ),
    "no_aborted_list": Planted(
        "readers are not told what was aborted", _instead(Partition, "aborted_in", lambda *_: [])
    ),
    "markers_not_retried": Planted(
        "a marker that cannot be written is given up", _instead(Transactions, "_write_markers", _write_markers_once)
    ),
    "markers_not_durable": Planted(
        "a transaction is over when its markers are written, before they are committed",
        lambda: patch("penstock.engine.transactions.transactions.until_safe", _visible_at_once),
    ),
    "markers_forgotten": Planted(
        "a coordinator that takes over does not write the markers that are missing",
        _instead(TransactionMachine, "replay", _replay_without_due),
    ),
    "loads_too_early": Planted(
        "a coordinator loads what it knows to be committed when it is elected, which need not be all",
        _instead(Shard, "_replay", _replay_what_is_known_to_be_committed),
    ),
    "reply_before_durable": Planted(
        "a coordinator answers before its record is committed", _instead(Shard, "_carry_out", _carry_out_and_tell)
    ),
    "old_machine": Planted(
        "a coordinator that comes back goes on with what it knew before",
        _both(_instead(Shard, "lost", _lost_and_kept), _instead(Shard, "gained", _keep_machine)),
    ),
    "snapshot_outlives_log": Planted(
        "a coordinator's snapshot has what is not committed, and stays when the log is taken back",
        _both(
            lambda: patch("penstock.engine.coordination.shard.SNAPSHOT_EVERY", 3),
            _instead(Shard, "_save", _save_at_once),
            _instead(Replicas, "take_back", _take_back_and_keep_snapshot),
        ),
    ),
    "aborted_offsets_count": Planted(
        "offsets of an aborted transaction count", _instead(Offsets, "end", _end_without_abort)
    ),
    "any_generation": Planted(
        "whoever was left behind by its group may commit", _instead(ClassicGroup, "check_commit", lambda *_, **__: None)
    ),
}
