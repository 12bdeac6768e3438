"""What an engine is made of: the ports to everything outside, and what its broker's configuration says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from penstock.engine.coordination.internal_topics import DEFAULT_PARTITIONS
from penstock.engine.groups.groups import GroupSettings
from penstock.engine.transactions.requests import TransactionLimits
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore
from penstock.ports.randomness import Randomness


class Ports(NamedTuple):
    disk: Disk
    clock: Clock
    randomness: Randomness
    store: MetadataStore


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Attributes:
    node_id: which broker this is.
    defaults: the broker's own defaults for topic settings.
    default_partitions: of a topic whose creator does not say.
    internal_partitions: of each internal topic, when it is created.
    compaction_bytes_per_second: what compaction and thinning may read and write; 0 is no limit.
    thin_every_ms: how often a log is looked at of which nothing was worth thinning.
    ends_behind_s: how old the kept ends of logs may be, by which an old copy of a log is known.
    scrub_s: how often sealed segments are read again to look for rot, at so many bytes a second.
    segment_files: kept open because they were read.
    ledger_entries: of a queue's ledger, before its state is written anew.
    """

    node_id: int = 1
    defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_partitions: int = 6
    internal_partitions: int = DEFAULT_PARTITIONS
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    upkeep_ms: int = 5000
    compaction_bytes_per_second: int = 0
    thin_every_ms: int = 60_000
    ends_behind_s: float = 10.0
    scrub_s: float = 24 * 3600.0
    scrub_bytes_per_second: int = 16 << 20
    segment_files: int = 4096
    ledger_entries: int = 2000
