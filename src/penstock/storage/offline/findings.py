"""What a look at a data directory found: each thing with its meaning, what a start does about it and the way out.

Harmless is what a crash, a stop or a running broker leaves, and the next start mends without losing a promised record.
Damage is what none of them leaves: bytes that are not what was written, files that are gone.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    DAMAGE = "damage"
    HARMLESS = "harmless"


class Start(StrEnum):
    """What the next start of a broker does about it."""

    REFUSES = "the broker does not start"
    OFFLINE = "the partition stays offline; nothing is changed"
    ERRORS = "reads there are answered with an error; nothing is changed"
    CUTS = "cuts it off and keeps the bytes beside it as .cut"
    MENDS = "mends it"
    IGNORES = "leaves it alone"


class Kind(StrEnum):
    FORMAT = "format"
    OWNER = "owner"
    METADATA = "metadata"
    STRANGER = "stranger"
    MISSING_PARTITION = "missing-partition"
    INTENT = "intent"
    BATCHES = "batches"
    BLOCK = "block"
    HOLE = "hole"
    CARD = "card"
    STATE = "state"
    GAPS = "gaps"
    SHORT = "short"
    RECORDS = "records"
    TAIL = "tail"
    SWAP = "swap"
    SNAPSHOT = "snapshot"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    severity: Severity
    path: str
    what: str
    start: Start
    way_out: str
    partition: str = ""
    """`topic-index`, or empty when it is about the directory as a whole."""
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.DAMAGE


REPAIR = "'penstock log repair', or restore the file from a backup"
OLDER = "put the newest back; or 'penstock log repair' (offsets stay empty), or 'penstock log accept' (are used again)"
MENDED = "the next start rebuilds it, or 'penstock log repair' now; look after the disk"
RESTORE = "restore the file from a replica or backup: what is right cannot be told from the rest"
NEXT_START = "nothing to do: the next start does it"
NOTHING = "nothing to do"
