"""The files of every replica: which epoch wrote which offsets, and whether all replicas hold the same bytes.

Followers append batches as they get them, so two replicas in sync differ in where segments begin and end at most.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .etcd_members import EtcdMembers

_HEADER = struct.Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset's delta."""
_LENGTH_FROM = 12
_ROOT = "/penstock/"


class Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    digest: str


def read_batches(directory: Path) -> list[Batch]:
    """All batches of one replica, in order; a tail that is no batch ends it."""
    found = []
    for path in sorted(directory.glob("*.log")):
        content, position = path.read_bytes(), 0
        while position + _HEADER.size <= len(content):
            base, length, epoch, magic, _crc, _attributes, delta = _HEADER.unpack_from(content, position)
            end = position + _LENGTH_FROM + length
            if magic != 2 or length <= 0 or end > len(content):
                break
            found.append(Batch(base, base + delta, epoch, hashlib.sha256(content[position:end]).hexdigest()))
            position = end
    return found


def differences(replicas: Mapping[int, list[Batch]], *, trimmed: bool = False) -> list[str]:
    """In words, where replicas do not hold the same batches; with `trimmed`, from the latest start on."""
    filled = {broker: batches for broker, batches in replicas.items() if batches}
    if not filled:
        return []
    if len(filled) < len(replicas):
        empty = sorted(set(replicas) - set(filled))
        return [f"brokers {empty} hold nothing, {sorted(filled)} do"]
    start = max(batches[0].base for batches in filled.values()) if trimmed else 0
    texts = []
    (first, expected), *others = sorted(filled.items())
    wanted = {batch.base: batch for batch in expected if batch.base >= start}
    for broker, batches in others:
        mine = {batch.base: batch for batch in batches if batch.base >= start}
        wrong = sorted(base for base in wanted.keys() | mine.keys() if wanted.get(base) != mine.get(base))
        if wrong:
            base = wrong[0]
            texts.append(
                f"brokers {first} and {broker} differ in {len(wrong)} batches; first at {base}: "
                f"{wanted.get(base)} and {mine.get(base)}"
            )
    return texts


class Decision(NamedTuple):
    """What the store said of a partition for a while."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


def decisions(etcd: EtcdMembers, topic: str) -> dict[int, list[Decision]]:
    """Everything the store ever said of each partition of a topic, the oldest first."""
    ((_, value, _),) = [entry for entry in etcd.get(f"{_ROOT}topics/{topic}") if entry[0].endswith(f"/{topic}")]
    prefix = f"{_ROOT}partitions/{json.loads(value)['id']}/"
    found: dict[int, list[Decision]] = {}
    for key, value, revision in etcd.get(prefix):
        states = [_decision(value)]
        while earlier := etcd.get(key, revision - 1):
            _, value, revision = earlier[0]
            states.append(_decision(value))
        found[int(key.removeprefix(prefix))] = states[::-1]
    return found


def go_on(forgotten: Mapping[int, list[Decision]], decided: Mapping[int, list[Decision]]) -> dict[int, list[Decision]]:
    """What a store said until an old copy of it was put back, and what it said of later epochs since then.

    It may say something of the old ones once more. Nobody may act on that: whoever acked by it is found out.
    """
    whole = {}
    for index, states in decided.items():
        before = forgotten.get(index, [])
        latest = max((state.epoch for state in before), default=-1)
        whole[index] = [*before, *(state for state in states if state.epoch > latest)]
    return whole


def _decision(value: bytes) -> Decision:
    fields = json.loads(value)
    return Decision(fields["leader"], fields["leader_epoch"], tuple(fields["isr"]), tuple(fields["replicas"]))
