"""The coordinators there are: the internal topic of each, its settings, and how its records are read and written.

Everything that has to know an internal topic from another goes by this table. Whoever runs a coordinator names its
entry to `Coordinators`, which starts, stops and finds the shards of all of them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from penstock.engine.coordination.schemas import GROUP_RECORDS, TRANSACTION_RECORDS, Entry

SETTINGS: Final = MappingProxyType(
    {"cleanup.policy": "compact", "segment.bytes": str(100 << 20), "compression.type": "producer"}
)


class Codec(Protocol):
    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        """Key and value as they are kept in the log. Raises ValueError or `struct.error`."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        """The entry in a record; None for a kind this release does not know. Raises PenstockError CORRUPT_LOG."""
        ...


class Registration(NamedTuple):
    """Attributes:
    topic: where its records are kept.
    settings: of that topic, when it is made; most can never be changed, see `internal_settings`.
    """

    topic: str
    codec: Codec
    settings: Mapping[str, str] = SETTINGS


class Attachment(NamedTuple):
    """A coordinator that lives beside the records it is about, in a log attached to each partition of a topic.

    Attributes:
    kind: the end of the name of its logs, for good. With more than five letters, topics of the longest names cannot
        have it.
    settings: of its logs, kept in the topic's record when it is attached.
    """

    kind: str
    codec: Codec
    settings: Mapping[str, str] = SETTINGS


GROUPS: Final = Registration("__consumer_offsets", GROUP_RECORDS)
TRANSACTIONS: Final = Registration("__transaction_state", TRANSACTION_RECORDS)
REGISTERED: Final[Mapping[str, Registration]] = {each.topic: each for each in (GROUPS, TRANSACTIONS)}
