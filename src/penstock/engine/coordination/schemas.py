"""The records of the internal topics, in Kafka's own schemas, so that Kafka's formatters read them.

A key begins with a number that says what it is about, a value with the version of its schema. Values are written in
the version Kafka 4 writes; those are the versions read, too. Flexible versions end each structure with tagged fields:
unknown ones are skipped, so that a later release may add some.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct, pack, unpack_from
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple
from uuid import UUID

from penstock.errors import Code, PenstockError


class Kind(IntEnum):
    """What a record is about. In groups' records it is the number that a key begins with."""

    OFFSET = 1
    GROUP = 2
    CONSUMER_GROUP = 3
    CONSUMER_MEMBER = 5
    CONSUMER_TARGET_EPOCH = 6
    CONSUMER_TARGET = 7
    CONSUMER_CURRENT = 8
    SHARE_MEMBER = 10
    SHARE_GROUP = 11
    SHARE_TARGET_EPOCH = 12
    SHARE_TARGET = 13
    SHARE_CURRENT = 14
    SHARE_STATE = 15
    CONSUMER_REGEX = 16
    TRANSACTION = 100


SHARE_KINDS = frozenset(
    (
        Kind.SHARE_MEMBER,
        Kind.SHARE_GROUP,
        Kind.SHARE_TARGET_EPOCH,
        Kind.SHARE_TARGET,
        Kind.SHARE_CURRENT,
        Kind.SHARE_STATE,
    )
)


class Entry(NamedTuple):
    """One record: what is true of a key from now on. A value of None takes the key back."""

    kind: Any
    """A `Kind`; in logs with a codec of their own, a word of that."""
    key: tuple[Any, ...]
    """(group, topic, partition), (group,), (group, member), (group, regex) or (transactional id,)."""
    value: Any


class OffsetValue(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int


class ClassicMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[ClassicMember, ...]


class ConsumerGroupValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class ConsumerMemberValue(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None


class TargetEpochValue(NamedTuple):
    assignment_epoch: int


class TopicPartitions(NamedTuple):
    topic_id: UUID
    partitions: tuple[int, ...]


class TargetValue(NamedTuple):
    topic_partitions: tuple[TopicPartitions, ...]


class CurrentValue(NamedTuple):
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...]


class RegexValue(NamedTuple):
    topics: tuple[str, ...]
    version: int
    timestamp: int


class ShareMemberValue(NamedTuple):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


class ShareGroupValue(NamedTuple):
    epoch: int
    metadata_hash: int


class ShareCurrentValue(NamedTuple):
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]


class Beginning(NamedTuple):
    """Partitions that a share group was given for the first time together."""

    state_epoch: int
    """The group's epoch then."""
    start_offset: int
    """-1 for one that is still to be found out."""
    partitions: tuple[int, ...]


class BegunTopic(NamedTuple):
    """A topic whose partitions a share group has been given at some time."""

    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]
    beginnings: tuple[Beginning, ...] = ()


class NamedTopic(NamedTuple):
    topic_id: UUID
    topic_name: str


class ShareStateValue(NamedTuple):
    initializing_topics: tuple[BegunTopic, ...]
    initialized_topics: tuple[BegunTopic, ...]
    deleting_topics: tuple[NamedTopic, ...]


class NamedPartitions(NamedTuple):
    topic: str
    partition_ids: tuple[int, ...]


class TransactionValue(NamedTuple):
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: tuple[NamedPartitions, ...] | None
    """None before the first transaction of a producer."""
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_transaction_version: int = 0


class _Tagged(NamedTuple):
    tag: int
    of: Any
    default: Any


class _Struct(NamedTuple):
    """A structure's fields in order, and the tagged ones behind them."""

    make: Callable[..., Any]
    fields: tuple[Any, ...]
    tagged: tuple[_Tagged, ...] = ()


class _Array(NamedTuple):
    of: Any
    nullable: bool = False


class _Schema(NamedTuple):
    key: tuple[Any, ...]
    version: int
    flexible: bool
    value: _Struct


_BYTE, _SHORT, _INT, _LONG = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_TEXT, _NULLABLE_TEXT, _BYTES, _UUID = "text", "nullable text", "bytes", "uuid"
_IDS = _Array(_Struct(TopicPartitions, (_UUID, _Array(_INT))))
_OWN_TAG = 1000  # far from any of Kafka's, whose readers skip what they do not know
_BEGUN = _Array(
    _Struct(
        BegunTopic,
        (_UUID, _TEXT, _Array(_INT)),
        (_Tagged(_OWN_TAG, _Array(_Struct(Beginning, (_INT, _LONG, _Array(_INT)))), ()),),
    )
)

_SCHEMAS = {
    Kind.OFFSET: _Schema((_TEXT, _TEXT, _INT), 3, False, _Struct(OffsetValue, (_LONG, _INT, _TEXT, _LONG))),
    Kind.GROUP: _Schema(
        (_TEXT,),
        3,
        False,
        _Struct(
            GroupValue,
            (
                _TEXT,
                _INT,
                _NULLABLE_TEXT,
                _NULLABLE_TEXT,
                _LONG,
                _Array(
                    _Struct(ClassicMember, (_TEXT, _NULLABLE_TEXT, _TEXT, _TEXT, _INT, _INT, _BYTES, _BYTES)),
                ),
            ),
        ),
    ),
    Kind.CONSUMER_GROUP: _Schema((_TEXT,), 0, True, _Struct(ConsumerGroupValue, (_INT,), (_Tagged(0, _LONG, 0),))),
    Kind.CONSUMER_MEMBER: _Schema(
        (_TEXT, _TEXT),
        0,
        True,
        _Struct(
            ConsumerMemberValue,
            (_NULLABLE_TEXT, _NULLABLE_TEXT, _TEXT, _TEXT, _Array(_TEXT), _NULLABLE_TEXT, _INT, _NULLABLE_TEXT),
        ),
    ),
    Kind.CONSUMER_TARGET_EPOCH: _Schema((_TEXT,), 0, True, _Struct(TargetEpochValue, (_INT,))),
    Kind.CONSUMER_TARGET: _Schema((_TEXT, _TEXT), 0, True, _Struct(TargetValue, (_IDS,))),
    Kind.CONSUMER_CURRENT: _Schema((_TEXT, _TEXT), 0, True, _Struct(CurrentValue, (_INT, _INT, _BYTE, _IDS, _IDS))),
    Kind.CONSUMER_REGEX: _Schema((_TEXT, _TEXT), 0, True, _Struct(RegexValue, (_Array(_TEXT), _LONG, _LONG))),
    Kind.SHARE_MEMBER: _Schema(
        (_TEXT, _TEXT), 0, True, _Struct(ShareMemberValue, (_NULLABLE_TEXT, _TEXT, _TEXT, _Array(_TEXT)))
    ),
    Kind.SHARE_GROUP: _Schema((_TEXT,), 0, True, _Struct(ShareGroupValue, (_INT, _LONG))),
    Kind.SHARE_TARGET_EPOCH: _Schema((_TEXT,), 0, True, _Struct(TargetEpochValue, (_INT,))),
    Kind.SHARE_TARGET: _Schema((_TEXT, _TEXT), 0, True, _Struct(TargetValue, (_IDS,))),
    Kind.SHARE_CURRENT: _Schema((_TEXT, _TEXT), 0, True, _Struct(ShareCurrentValue, (_INT, _INT, _BYTE, _IDS))),
    Kind.SHARE_STATE: _Schema(
        (_TEXT,),
        0,
        True,
        _Struct(
            ShareStateValue,
            (_BEGUN, _BEGUN, _Array(_Struct(NamedTopic, (_UUID, _TEXT)))),
        ),
    ),
    Kind.TRANSACTION: _Schema(
        (_TEXT,),
        1,
        True,
        _Struct(
            TransactionValue,
            (
                _LONG,
                _SHORT,
                _INT,
                _BYTE,
                _Array(_Struct(NamedPartitions, (_TEXT, _Array(_INT))), nullable=True),
                _LONG,
                _LONG,
            ),
            (_Tagged(0, _LONG, -1), _Tagged(1, _LONG, -1), _Tagged(2, _SHORT, 0)),
        ),
    ),
}
_OFFSET_HEAD = Struct(">hqih")  # version, offset, leader epoch, size of the metadata
_FLEXIBLE_KEYS = False  # no key of Kafka's internal topics has tagged fields


class Records:
    """How the records of one internal topic are written and read.

    Args:
        kinds: which of them it has, by the number their keys begin with; of several numbers, the last is written.
    """

    __slots__ = ("_heads", "_kinds")

    def __init__(self, kinds: Mapping[int, Kind]) -> None:
        self._kinds = kinds
        self._heads = {kind: _SHORT.pack(number) for number, kind in kinds.items()}

    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        """Key and value as they are kept in the log."""
        head = self._heads[entry.kind]
        if entry.kind is Kind.OFFSET and entry.value is not None:
            return _encode_offset(head, entry)
        schema = _SCHEMAS[entry.kind]
        key = bytearray(head)
        for kind, part in zip(schema.key, entry.key, strict=True):
            _write(key, kind, part, _FLEXIBLE_KEYS)
        if entry.value is None:
            return bytes(key), None
        value = bytearray(_SHORT.pack(schema.version))
        _write(value, schema.value, entry.value, schema.flexible)
        return bytes(key), bytes(value)

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        """The entry in a record; None for a kind this release does not know.

        Raises:
            PenstockError: CORRUPT_LOG; the bytes are not what they claim to be.
        """
        try:
            return _decode(key, value, self._kinds)
        except (StructError, IndexError, ValueError) as error:
            raise PenstockError(Code.CORRUPT_LOG, f"a record of an internal topic cannot be read: {error}") from None


GROUP_RECORDS = Records(
    {0: Kind.OFFSET} | {kind.value: kind for kind in Kind if kind is not Kind.TRANSACTION}  # 0 is older
)
TRANSACTION_RECORDS = Records({0: Kind.TRANSACTION})


def _encode_offset(head: bytes, entry: Entry) -> tuple[bytes, bytes]:
    """As its schema would; nothing else is written nearly as often."""
    group, topic, partition = entry.key
    group, topic = group.encode(), topic.encode()
    offset, leader_epoch, metadata, committed_at = entry.value
    metadata = metadata.encode()
    short, version = _SHORT.pack, _SCHEMAS[Kind.OFFSET].version
    key = b"".join((head, short(len(group)), group, short(len(topic)), topic, _INT.pack(partition)))
    value = _OFFSET_HEAD.pack(version, offset, leader_epoch, len(metadata)) + metadata + _LONG.pack(committed_at)
    return key, value


def _decode(key: bytes | None, value: bytes | None, kinds: Mapping[int, Kind]) -> Entry | None:
    if key is None:
        raise ValueError("it has no key")
    kind = kinds.get(_SHORT.unpack_from(key)[0])
    if kind is None:
        return None
    schema = _SCHEMAS[kind]
    position, parts = _SHORT.size, []
    for part in schema.key:
        read, position = _read(key, position, part, _FLEXIBLE_KEYS)
        parts.append(read)
    if value is None:
        return Entry(kind, tuple(parts), None)
    version = _SHORT.unpack_from(value)[0]
    if version != schema.version:
        raise ValueError(f"{kind.name} in version {version}; this release reads {schema.version}")
    return Entry(kind, tuple(parts), _read(value, _SHORT.size, schema.value, schema.flexible)[0])


def _write(out: bytearray, kind: Any, value: Any, flexible: bool) -> None:
    if isinstance(kind, Struct):
        out += kind.pack(value)
    elif isinstance(kind, _Array):
        _write_size(out, -1 if value is None else len(value), _INT, flexible)
        if kind.of is _INT:
            out += pack(f">{len(value)}i", *value)
        elif kind is _IDS and flexible:
            _write_ids(out, value)
        else:
            for element in value or ():
                _write(out, kind.of, element, flexible)
    elif isinstance(kind, _Struct):
        for part, field in zip(kind.fields, value[: len(kind.fields)], strict=True):
            _write(out, part, field, flexible)
        if flexible:
            _write_tags(out, kind, value[len(kind.fields) :])
    elif kind is _UUID:
        out += value.bytes
    elif value is None:
        out += b"\0" if flexible else _SHORT.pack(-1)
    else:
        data = value if kind is _BYTES else value.encode()
        _write_size(out, len(data), _INT if kind is _BYTES else _SHORT, flexible)
        out += data


def _write_ids(out: bytearray, topics: tuple[TopicPartitions, ...]) -> None:
    """As `_write` would; a group has thousands of partitions, and they are written whenever somebody joins."""
    for topic_id, partitions in topics:
        count = len(partitions)
        out += topic_id.bytes
        _write_uvarint(out, count + 1)
        out += pack(f">{count}i", *partitions)
        out += b"\0"  # no tagged fields


def _write_tags(out: bytearray, kind: _Struct, values: tuple[Any, ...]) -> None:
    present = [
        (tagged.tag, tagged.of, value)
        for tagged, value in zip(kind.tagged, values, strict=True)
        if value != tagged.default
    ]
    _write_uvarint(out, len(present))
    for tag, part, value in present:
        body = bytearray()
        _write(body, part, value, True)
        _write_uvarint(out, tag)
        _write_uvarint(out, len(body))
        out += body


def _write_size(out: bytearray, size: int, plain: Struct, flexible: bool) -> None:
    if flexible:
        _write_uvarint(out, size + 1)
    else:
        out += plain.pack(size)


def _write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _read(data: bytes, position: int, kind: Any, flexible: bool) -> tuple[Any, int]:
    if isinstance(kind, Struct):
        return kind.unpack_from(data, position)[0], position + kind.size
    if isinstance(kind, _Array):
        count, position = _read_size(data, position, _INT, flexible)
        if count < 0 and kind.nullable:
            return None, position
        if kind.of is _INT:
            numbers = unpack_from(f">{_within(data, position, count)}i", data, position)
            return numbers, position + count * _INT.size
        elements = []
        for _ in range(_within(data, position, count)):
            element, position = _read(data, position, kind.of, flexible)
            elements.append(element)
        return tuple(elements), position
    if isinstance(kind, _Struct):
        return _read_struct(data, position, kind, flexible)
    if kind is _UUID:
        return UUID(bytes=data[position : position + 16]), position + 16
    size, position = _read_size(data, position, _INT if kind is _BYTES else _SHORT, flexible)
    if size < 0 and kind is _NULLABLE_TEXT:
        return None, position
    taken = data[position : position + _within(data, position, size)]
    return taken if kind is _BYTES else taken.decode(), position + size


def _read_struct(data: bytes, position: int, kind: _Struct, flexible: bool) -> tuple[Any, int]:
    values: list[Any] = []
    for part in kind.fields:
        value, position = _read(data, position, part, flexible)
        values.append(value)
    values += [tagged.default for tagged in kind.tagged]
    if flexible:
        count, position = _read_uvarint(data, position)
        for _ in range(_within(data, position, count)):
            tag, position = _read_uvarint(data, position)
            size, position = _read_uvarint(data, position)
            for at, tagged in enumerate(kind.tagged, start=len(kind.fields)):
                if tagged.tag == tag:
                    values[at] = _read(data, position, tagged.of, True)[0]
            position += _within(data, position, size)
    return kind.make(*values), position


def _read_size(data: bytes, position: int, plain: Struct, flexible: bool) -> tuple[int, int]:
    if not flexible:
        return plain.unpack_from(data, position)[0], position + plain.size
    size, position = _read_uvarint(data, position)
    return size - 1, position


def _read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is too long")


def _within(data: bytes, position: int, count: int) -> int:
    if not 0 <= count <= len(data) - position:
        raise ValueError(f"{count} elements or bytes in {len(data) - position} bytes")
    return count
