"""A message of a queue as JSON has it."""

from base64 import b64encode
from collections.abc import Sequence

from penstock.engine.partition import Partition
from penstock.engine.reading import Message
from penstock.protocols.kafka.verbs.verb import Answer
from penstock.records.record import Headers


def message_fields(partition: Partition, message: Message) -> Answer:
    return {
        "partition": partition.index,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **_bytes_fields("key", message.key),
        **_bytes_fields("value", message.value),
        "headers": _headers_fields(message.headers),
    }


def _headers_fields(headers: Headers) -> Sequence[Answer]:
    return [{"name": name, **_bytes_fields("value", value)} for name, value in headers]


def _bytes_fields(name: str, content: bytes | None) -> Answer:
    """As text where it is UTF-8, else in base64."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content).decode()}
