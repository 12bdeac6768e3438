"""A message of a queue as JSON has it."""

from collections.abc import Sequence

from penstock.engine.partition import Partition
from penstock.engine.reading import Message
from penstock.protocols.kafka.verbs.document import bytes_fields
from penstock.protocols.kafka.verbs.verb import Answer
from penstock.records.record import Headers


def message_fields(partition: Partition, message: Message) -> Answer:
    return {
        "partition": partition.index,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **bytes_fields("key", message.key),
        **bytes_fields("value", message.value),
        "headers": _headers_fields(message.headers),
    }


def _headers_fields(headers: Headers) -> Sequence[Answer]:
    return [{"name": name, **bytes_fields("value", value)} for name, value in headers]
