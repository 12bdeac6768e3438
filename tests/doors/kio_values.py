"""Random messages of any Kafka API and version, as kio's entities and as the plain values our codecs speak in.

A message is made from a `random.Random`, so a seed names it. Plain means: times are milliseconds, error codes are
numbers, entities are dictionaries, arrays are tuples, a missing UUID is the zero one.
"""

import datetime
import importlib
import io
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)
_ZERO = UUID(int=0)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_WORDS = ("", "a", "topic", "x" * 126, "y" * 127, "z" * 128, "name.with-every_thing", "grüße ☃", "t" * 300)


@cache
def entity_of(api: str, version: int, direction: str) -> type:
    """kio's class of an API's "request" or "response"."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{direction}")
    return getattr(module, "".join(word.capitalize() for word in api.split("_")) + direction.capitalize())


def unwrapped(kind: Any) -> tuple[Any, bool]:
    """A type without its None, and whether it had one."""
    if get_origin(kind) in (UnionType, Union):
        return next(option for option in get_args(kind) if option is not NoneType), True
    return kind, False


def _number(random: Random, bits: int) -> int:
    kind = random.random()
    if kind < 0.3:
        return random.choice((-1, 0, 1, 2))
    if kind < 0.5:
        return random.choice((-(1 << bits - 1), (1 << bits - 1) - 1))
    return random.randint(-(1 << bits - 1), (1 << bits - 1) - 1)


def _primitive(random: Random, kafka_type: str) -> Any:
    if kafka_type in _BITS:
        return _number(random, _BITS[kafka_type])
    if kafka_type == "string":
        return random.choice(_WORDS)
    if kafka_type in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 5, 126, 127, 128, 300)))
    if kafka_type == "bool":
        return random.random() < 0.5
    if kafka_type == "uuid":
        return UUID(int=random.getrandbits(128) | 1)
    if kafka_type == "timedelta_i32":
        return datetime.timedelta(milliseconds=_number(random, 32))
    if kafka_type == "timedelta_i64":
        return datetime.timedelta(milliseconds=_number(random, 40))
    if kafka_type == "datetime_i64":
        return _EPOCH + datetime.timedelta(milliseconds=random.randint(0, 1 << 42))
    if kafka_type == "uint16":
        return random.randint(0, (1 << 16) - 1)
    if kafka_type == "float64":
        return random.uniform(-1e9, 1e9)
    assert kafka_type == "error_code", kafka_type
    return random.choice(list(ErrorCode))


def random_entity(random: Random, entity: type, *, depth: int = 0) -> Any:
    """An instance of a kio class with anything its fields may hold, defaults now and then."""
    values = {}
    for field in fields(entity):
        kind, nullable = unwrapped(field.type)
        tagged = "tag" in field.metadata
        if tagged and random.random() < 0.5:
            values[field.name] = field.default
        elif nullable and not tagged and random.random() < 0.3:
            values[field.name] = None
        elif get_origin(kind) is tuple:
            element, _ = unwrapped(get_args(kind)[0])
            size = random.choice((0, 1, 2, 3)) if depth or random.random() < 0.95 else 150
            values[field.name] = tuple(_one(random, element, field, depth) for _ in range(size))
        else:
            values[field.name] = _one(random, kind, field, depth)
    return entity(**values)


def _one(random: Random, kind: Any, field: Any, depth: int) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return random_entity(random, kind, depth=depth + 1)
    return _primitive(random, field.metadata["kafka_type"])


def plain(value: Any) -> Any:
    """A kio value or one of our decoded messages as plain values."""
    if is_dataclass(value):
        return {
            field.name: _ZERO
            if field.metadata.get("kafka_type") == "uuid" and getattr(value, field.name) is None
            else plain(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, tuple | list):
        return tuple(plain(each) for each in value)
    if isinstance(value, datetime.timedelta):
        return value // _MS
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MS
    if isinstance(value, Enum):
        return value.value
    if type(value).__name__ == "Message":
        return {name: plain(each) for name, each in vars(value).items()}
    return value


def write(entity: Any) -> bytes:
    """The bytes kio makes of an entity."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def read(entity: type, data: bytes) -> Any:
    """What kio reads; for bytes of our own making only, its reader trusts every count. Must use all of them."""
    found: Any
    found, used = entity_reader(entity)(data, 0)
    assert used == len(data), f"{len(data) - used} bytes behind the message"
    return found


def request_frame(entity: Any, correlation_id: int, client_id: str | None = "test") -> bytes:
    """A request with its header, without the length in front."""
    head = entity.__header_schema__
    known = {field.name for field in fields(head)}
    values = {
        "request_api_key": entity.__api_key__,
        "request_api_version": entity.__version__,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    return write(head(**{name: value for name, value in values.items() if name in known})) + write(entity)
