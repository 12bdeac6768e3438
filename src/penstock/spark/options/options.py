"""Options of a read or a write, parsed and checked before a broker is asked.

Spark hands them over with names in lower case, and all values as text.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from penstock.client.contexts import choose, load_contexts, path_of
from penstock.client.credentials import overlay, with_password
from penstock.client.errors import ClientError
from penstock.client.security import parse_security
from penstock.client.settings import Settings
from penstock.records.compression import Codec
from penstock.spark.errors import OptionError
from penstock.spark.options.client_properties import SECURITY
from penstock.spark.options.option_table import OPTIONS, Option, Use, check_names
from penstock.spark.options.positions import Positions, check_order, parse_ending, parse_starting
from penstock.spark.options.selection import select_columns
from penstock.spark.options.subscription import Subscription, parse_subscription

__all__ = [
    "OPTIONS",
    "Option",
    "ReadOptions",
    "Subscription",
    "WriteOptions",
    "parse_columns",
    "parse_read",
    "parse_write",
]

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_FORMAT_PREFIX = "value."
_LONGEST_TRANSACTION_MS = 1_800_000  # half of what compaction leaves alone in the topic of marks
_LEAST_BATCH_BYTES = 16 * 1024  # Kafka's own default: anything less is all headers and round trips
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """
    Attributes:
        settings: its `bootstrap` is empty for a batch read of `path` without brokers.
        max_rows: offsets in a micro-batch; None in batch reads, as `max_bytes`.
        format_options: those behind `value.`; empty for raw values.
        poll_timeout_s: how long a task waits for records that must be there.
    """

    settings: Settings
    subscription: Subscription
    starting: Positions
    ending: Positions
    columns: tuple[str, ...]
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    pushdown: bool
    read_committed: bool
    format_options: Mapping[str, str]
    path: str | None
    poll_timeout_s: float
    fetch_bytes: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """
    Attributes:
        topic: of all rows; None: each row names its own.
        checkpoint: where the stream keeps its progress, if its own options say so.
        acks: -1 (all), 0 or 1.
        codec: one of `penstock.records.compression.Codec`.
        batch_bytes: of a record batch before it is compressed.
        check_repeats: whether a batch that was written before must have the same rows when it comes again.
        batch: which query's micro-batch a batch write is, if it says so.
    """

    settings: Settings
    topic: str | None
    delivery: Literal["exactly-once", "at-least-once"]
    transactional_id: str | None
    checkpoint: str | None
    acks: int
    codec: int
    batch_bytes: int
    include_headers: bool
    delivery_timeout_s: float
    transaction_timeout_ms: int
    check_repeats: bool
    batch: tuple[str, int] | None = None


class _Given:
    """The options somebody set, each read once as what it must be."""

    def __init__(self, options: Mapping[str, str], use: Use) -> None:
        check_names(options, use)
        self.values = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """None where it is not set; set to nothing is a mistake."""
        value = self.values.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"{name} is empty; give it a value, or leave it out")
        return value.strip()

    def number(self, name: str, *, least: int = 1, most: int = _INT32_MAX) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(value) <= most):
            raise OptionError(f"{name} = {value!r}: it is a whole number from {least} to {most}")
        return int(value)

    def number_or(self, name: str, default: int, *, least: int = 1) -> int:
        value = self.number(name, least=least)
        return default if value is None else value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise OptionError(f"{name} = {value!r}: it is one of {', '.join(choices)}")
        return value

    def truth(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"


def parse_columns(options: Mapping[str, str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """What a read's schema depends on, whether it is a stream or not: its columns, and the format's options.

    Raises:
        OptionError: as `parse_read`, for these options.
    """
    return _parse_columns(_Given(options, Use.READ))


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """
    Args:
        options: as Spark has them; the case of names does not count.
        streaming: whether they are a stream's.

    Raises:
        OptionError: an option is missing, unknown, or has a value it cannot have.
    """
    given = _Given(options, Use.STREAM_READ if streaming else Use.BATCH_READ)
    columns, format_options = _parse_columns(given)
    path = given.text("path")
    starting = parse_starting(given.values, streaming=streaming)
    ending = parse_ending(given.values)
    if streaming and ending.everywhere is None and min(ending.each.values(), default=0) < 0:
        raise OptionError("endingOffsets: a stream ends at offsets, not at the latest one, which moves on")
    check_order(starting, ending)
    max_rows, max_bytes = _parse_limits(given)
    return ReadOptions(
        settings=_parse_settings(given, brokers_needed=streaming or path is None),
        subscription=parse_subscription(given.values),
        starting=starting,
        ending=ending,
        columns=columns,
        max_rows=max_rows if streaming else None,
        max_bytes=max_bytes if streaming else None,
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition", most=_INT64_MAX),
        fail_on_data_loss=given.truth("failOnDataLoss", default=True),
        pushdown=given.truth("pushdown", default=False) and not streaming,
        read_committed=_parse_isolation(given),
        format_options=format_options,
        path=path,
        poll_timeout_s=given.number_or("kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        fetch_bytes=given.number_or("kafka.max.partition.fetch.bytes", 8 << 20),
    )


def parse_write(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """As `parse_read`."""
    given = _Given(options, Use.STREAM_WRITE if streaming else Use.BATCH_WRITE)
    choices = ("exactly-once", "at-least-once")
    delivery = given.choice("delivery", choices, choices[0] if streaming else choices[1])
    acks = _ACKS[given.choice("kafka.acks", tuple(_ACKS), "all")]
    transactional_id = given.text("transactional.id")
    if delivery == "exactly-once" and acks != -1:
        raise OptionError(f"kafka.acks = {acks} cannot be exactly once: leave it out, or set delivery=at-least-once")
    if delivery != "exactly-once" and transactional_id is not None:
        raise OptionError("transactional.id is for exactly-once: set delivery=exactly-once, or leave it out")
    if given.truth("kafka.partitioner.ignore.keys", default=False):
        raise OptionError(
            "kafka.partitioner.ignore.keys is not offered: drop the column key, or add a column partition"
        )
    codecs = {codec.name.lower(): codec for codec in Codec}
    return WriteOptions(
        settings=_parse_settings(given, brokers_needed=True),
        topic=given.text("topic"),
        delivery=cast(Literal["exactly-once", "at-least-once"], delivery),
        transactional_id=transactional_id,
        checkpoint=given.text("checkpointLocation"),
        acks=acks,
        codec=codecs[given.choice("kafka.compression.type", tuple(codecs), "none")],
        batch_bytes=max(_LEAST_BATCH_BYTES, given.number_or("kafka.batch.size", 900_000, least=0)),
        include_headers=given.truth("includeHeaders", default=True),
        delivery_timeout_s=given.number_or("kafka.delivery.timeout.ms", 120_000) / 1000,
        transaction_timeout_ms=given.number("kafka.transaction.timeout.ms", most=_LONGEST_TRANSACTION_MS) or 900_000,
        check_repeats=given.truth("checkRepeats", default=True),
        batch=_parse_batch(given, delivery, transactional_id),
    )


def _parse_batch(given: _Given, delivery: str, transactional_id: str | None) -> tuple[str, int] | None:
    query, batch = given.text("batch.query"), given.number("batch.id", least=0, most=_INT64_MAX)
    if query is None and batch is None:
        return None
    if query is None or batch is None:
        raise OptionError("batch.query and batch.id go together: which query, and which of its micro-batches")
    if delivery != "exactly-once" or transactional_id is None:
        raise OptionError(
            "batch.query and batch.id are for exactly-once under a name of its own: set delivery=exactly-once and "
            "transactional.id"
        )
    return query, batch


def _parse_columns(given: _Given) -> tuple[tuple[str, ...], dict[str, str]]:
    formatted = {
        name.removeprefix(_FORMAT_PREFIX): value
        for name, value in given.values.items()
        if name.startswith(_FORMAT_PREFIX)
    }
    if formatted and given.text("value.format") is None:
        names = ", ".join(f"{_FORMAT_PREFIX}{name}" for name in sorted(formatted))
        raise OptionError(f"{names} without value.format: set it to json, avro, protobuf or msgpack")
    headers = given.truth("includeHeaders", default=False)
    return select_columns(given.values.get("columns"), headers=headers, typed=bool(formatted)), formatted


def _parse_limits(given: _Given) -> tuple[int | None, int | None]:
    rows = given.number("maxOffsetsPerTrigger", most=_INT64_MAX)
    size = given.number("maxBytesPerTrigger", most=_INT64_MAX)
    if rows is not None and size is not None:
        raise OptionError("maxOffsetsPerTrigger and maxBytesPerTrigger are both set; a micro-batch has one limit")
    return rows, size


def _parse_isolation(given: _Given) -> bool:
    levels = ("read_committed", "read_uncommitted")
    return given.choice("kafka.isolation.level", levels, levels[0]) == levels[0]


def _with_context(
    given: _Given, bootstrap: str | None, properties: dict[str, str], *, brokers_needed: bool
) -> tuple[str | None, dict[str, str]]:
    """What the context and the environment of the driver add: nothing to a read that needs no brokers and names none.

    A context that only the environment names is for who names no brokers: its credentials may be for others.
    """
    name = given.text("context")
    if bootstrap is None and name is None and brokers_needed:
        bootstrap = os.environ.get("PENSTOCK_SERVER")
        name = None if bootstrap else os.environ.get("PENSTOCK_CONTEXT")
    if name:
        path = path_of(os.environ)
        context = choose(name, load_contexts(path)[1], path)
        return bootstrap or context.server, overlay(context.properties, properties)
    if not bootstrap and brokers_needed:
        raise OptionError(
            "kafka.bootstrap.servers is not set: name the brokers, such as localhost:9092, or a context with context"
        )
    return bootstrap, properties


def _parse_settings(given: _Given, *, brokers_needed: bool) -> Settings:
    bootstrap = given.text("kafka.bootstrap.servers")
    properties = {name: given.values[f"kafka.{name}"] for name in SECURITY if f"kafka.{name}" in given.values}
    try:
        bootstrap, properties = _with_context(given, bootstrap, properties, brokers_needed=brokers_needed)
        settings = Settings(
            bootstrap or "",
            security=parse_security(with_password(properties, os.environ)),
            timeout_s=given.number_or("kafka.request.timeout.ms", 30_000) / 1000,
            client_id=given.text("kafka.client.id") or "penstock",
            receive_buffer_bytes=given.number_or("kafka.receive.buffer.bytes", 1 << 20, least=-1),
            patience_s=given.number_or("kafka.default.api.timeout.ms", 60_000) / 1000,
        )
        if bootstrap is not None:
            settings.addresses()
    except ClientError as error:
        raise OptionError(f"kafka.* options: {error}") from error
    return settings
