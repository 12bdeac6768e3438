"""Protobuf: a message's columns from its descriptor, and its values one by one with Google's parser (all at once in
`protobuf_scan`, where the message allows).

Descriptors come as the FileDescriptorSet that `protoc --include_imports -o set.desc file.proto` writes; no
generated code. Spark types: int32 INT, int64 BIGINT, uint32 BIGINT and uint64 DECIMAL(20,0) (so that none turns
negative), enum STRING (a number nobody named: its digits), google.protobuf.Timestamp TIMESTAMP, repeated ARRAY, map
MAP, other messages STRUCT; messages without fields are left out. By Protobuf's own rule a field without presence
that is not there has its default (0, "", false); optional, oneof and message fields are null. Unknown fields are
ignored, nesting beyond 100 is refused by the parser.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pyspark.sql import types as t

from penstock.spark.errors import FormatError, OptionError
from penstock.spark.formats import arrays, protobuf_scan
from penstock.spark.formats.fields import Decoded, arrow_type, output_fields, read_schema_file, reject_unknown
from penstock.spark.formats.scanning import decode_quickly

_PROTOC = "protoc --include_imports -o set.desc file.proto"

MAX_DEPTH = 50
MAX_TYPES = 5_000
"""Fields of one message, nested ones counted at each use: a few messages that hold each other make a huge tree."""

_KNOWN_FILES = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
"""Files everybody imports and `protoc -o` leaves out unless told otherwise."""

_SPARK: Mapping[int, t.DataType] = {
    FieldDescriptorProto.TYPE_DOUBLE: t.DoubleType(),
    FieldDescriptorProto.TYPE_FLOAT: t.FloatType(),
    FieldDescriptorProto.TYPE_INT64: t.LongType(),
    FieldDescriptorProto.TYPE_SINT64: t.LongType(),
    FieldDescriptorProto.TYPE_SFIXED64: t.LongType(),
    FieldDescriptorProto.TYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptorProto.TYPE_FIXED64: t.DecimalType(20, 0),
    FieldDescriptorProto.TYPE_INT32: t.IntegerType(),
    FieldDescriptorProto.TYPE_SINT32: t.IntegerType(),
    FieldDescriptorProto.TYPE_SFIXED32: t.IntegerType(),
    FieldDescriptorProto.TYPE_UINT32: t.LongType(),
    FieldDescriptorProto.TYPE_FIXED32: t.LongType(),
    FieldDescriptorProto.TYPE_BOOL: t.BooleanType(),
    FieldDescriptorProto.TYPE_STRING: t.StringType(),
    FieldDescriptorProto.TYPE_BYTES: t.BinaryType(),
}


def open_protobuf(options: Mapping[str, str]) -> ProtobufFormat:
    """The format of `value.format=protobuf` with `value.schema.file` and `value.message`.

    Raises:
        OptionError: an option is missing or unknown, or the message has what Spark has no columns for.
        FormatError: the descriptors cannot be read.
    """
    reject_unknown(options, ["schema.file", "message"])
    path, name = options.get("schema.file", "").strip(), options.get("message", "").strip().lstrip(".")
    if not path:
        raise OptionError(f"value.format=protobuf needs value.schema.file, as `{_PROTOC}` writes it")
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(read_schema_file(path))
    except message.DecodeError as problem:
        raise FormatError(f"value.schema.file={path} is no set of descriptors; write one with `{_PROTOC}`") from problem
    files = {file.name: file for file in found.file}
    names = {full: file.name for file in found.file for full in _message_names(file.package, file.message_type)}
    if name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.3) or sorted(names)[:10]
        given = f"value.message={name} is not in" if name else "value.message must name one of the messages of"
        raise OptionError(f"{given} {path}; it has {', '.join(near) or 'none'}")
    needed = descriptor_pb2.FileDescriptorSet(file=_with_imports(files, names[name], path))
    return ProtobufFormat(needed.SerializeToString(), name, options.get("prefix", ""))


def _message_names(scope: str, messages: Any) -> Iterator[str]:
    for each in messages:
        full = f"{scope}.{each.name}".lstrip(".")
        yield full
        yield from _message_names(full, each.nested_type)


def _with_imports(files: dict[str, Any], name: str, path: str) -> list[Any]:
    """The file and what it imports, imports first."""
    ordered: dict[str, Any] = {}
    pending = [name]
    while pending:
        current = pending[-1]
        if current not in files:
            if current not in _KNOWN_FILES:
                raise FormatError(
                    f"{path} lacks {current}, which it imports; write it with `protoc --include_imports -o`"
                )
            files[current] = descriptor_pb2.FileDescriptorProto()
            _KNOWN_FILES[current].CopyToProto(files[current])
        missing = [other for other in files[current].dependency if other not in ordered and other not in pending]
        pending += missing
        if not missing:
            ordered[pending.pop()] = files[current]
    return list(ordered.values())


class ProtobufFormat:
    """Values of one message type; travels as its descriptors, compiles where it arrives."""

    fields: t.StructType

    def __init__(self, descriptors: bytes, name: str, prefix: str) -> None:
        self._made_of = (descriptors, name, prefix)
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
                pool.Add(file)
            described = pool.FindMessageTypeByName(name)
        except (TypeError, KeyError) as problem:
            raise FormatError(f"the descriptors of {name} do not fit together: {problem}") from problem
        reading = _Compiler().message(described, name)
        if reading is None or not isinstance(reading.spark, t.StructType):
            raise OptionError(f"value.message={name} has no fields that Spark has columns for")
        self.fields = output_fields(reading.spark, prefix)
        self._names = reading.spark.names
        self._record: arrays.Record = reading.column
        self._message: protobuf_scan.Message | None = reading.step
        self._parse: Callable[[bytes], object] = message_factory.GetMessageClass(described).FromString

    def __reduce__(self) -> tuple[type[ProtobufFormat], tuple[bytes, str, str]]:
        return ProtobufFormat, self._made_of

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """One array for each field and the errors; see `formats.ValueFormat`."""
        if self._message is None:
            return self.decode_slowly(values)
        return decode_quickly(values, self._message.scan_rows, self.decode_slowly)

    def decode_slowly(self, values: pa.BinaryArray) -> Decoded:
        """As `decode`, value by value: for all messages, and for values that are out of the common."""
        return arrays.decode_each(
            "protobuf", values, self._parse, (message.DecodeError, ValueError), self._names, self._record
        )


@dataclass(frozen=True, slots=True)
class _Moments:
    """google.protobuf.Timestamp."""

    type: pa.DataType = field(default_factory=lambda: pa.timestamp("us", "UTC"))

    def build(self, values: arrays.Values) -> pa.Array:
        micros = [None if value is None else value.seconds * 1_000_000 + value.nanos // 1000 for value in values]  # type: ignore[attr-defined]
        return pa.array(micros, self.type)


class _Names(dict[int, str]):
    """An enum's names; open enums may hold numbers without one."""

    def __missing__(self, number: int) -> str:
        return str(number)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A type in Spark, as a column of the parser's values, on the wire, and as a step over all rows if it has one."""

    spark: t.DataType
    column: Any
    wire_type: int
    step: Any


class _Compiler:
    """Walks a message's descriptor."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._count = 0

    def message(self, described: Any, place: str) -> _Reading | None:
        """None for a message without fields: Spark has no struct like that."""
        if described.full_name == "google.protobuf.Timestamp":
            return _Reading(t.TimestampType(), _Moments(), 2, protobuf_scan.moment())
        if described.full_name in self._open:
            raise OptionError(f"{place} contains itself ({described.full_name}); Spark has no columns without an end")
        if len(self._open) == MAX_DEPTH:
            raise OptionError(f"{place} is nested deeper than {MAX_DEPTH} messages; read a flatter one")
        self._open.append(described.full_name)
        parts = [(part, self.field(part, f"{place}.{part.name}")) for part in described.fields]
        self._open.pop()
        kept = [(part, reading) for part, reading in parts if reading is not None]
        if not kept:
            return None
        spark = t.StructType([t.StructField(part.name, reading.spark) for part, reading in kept])
        getters = tuple(_getter(part) for part, _ in kept)
        column = arrays.Record(arrow_type(spark), getters, tuple(reading.column for _, reading in kept))
        return _Reading(spark, column, 2, _message_step(described, kept, column.type))

    def field(self, described: Any, place: str) -> _Reading | None:
        self._count += 1
        if self._count > MAX_TYPES:
            raise OptionError(f"the message comes to more than {MAX_TYPES} fields when written out; read a smaller one")
        if described.message_type is not None and described.message_type.GetOptions().map_entry:
            key, value = (self.field(part, place) for part in described.message_type.fields)
            if key is None or value is None:
                return None
            spark: t.DataType = t.MapType(key.spark, value.spark)
            return _Reading(spark, arrays.MapOf(arrow_type(spark), key.column, value.column), 2, None)
        single = self.single(described, place)
        return single if single is None or not described.is_repeated else _repeated(described, single)

    def single(self, described: Any, place: str) -> _Reading | None:
        if described.message_type is not None:
            found = self.message(described.message_type, place)
            is_group = described.type == FieldDescriptorProto.TYPE_GROUP
            return found if found is None or not is_group else _Reading(found.spark, found.column, 3, None)
        if described.enum_type is not None:
            names = _Names({number: value.name for number, value in described.enum_type.values_by_number.items()})
            numbers = tuple(sorted(names))
            step = protobuf_scan.Symbol(numbers, tuple(names[number] for number in numbers))
            return _Reading(t.StringType(), arrays.Named(names), 0, step)
        spark = _SPARK[described.type]
        return _Reading(
            spark, arrays.Plain(arrow_type(spark)), *protobuf_scan.scalar(described.type, arrow_type(spark))
        )


def _repeated(described: Any, item: _Reading) -> _Reading:
    spark = t.ArrayType(item.spark)
    column = arrays.ListOf(arrow_type(spark), item.column)
    if item.step is None:
        return _Reading(spark, column, 2, None)
    if described.is_packed:
        tag = protobuf_scan.tag_of(described.number, 2)
        return _Reading(spark, column, 2, protobuf_scan.Packed(tag, column.type, item.step))
    tag = protobuf_scan.tag_of(described.number, item.wire_type)
    return _Reading(spark, column, 2, protobuf_scan.Repeated(tag, column.type, item.step))


def _message_step(described: Any, kept: list[tuple[Any, _Reading]], arrow: pa.DataType) -> protobuf_scan.Message | None:
    if any(reading.step is None for _, reading in kept):
        return None
    order = sorted(range(len(kept)), key=lambda place: kept[place][0].number)
    places = {part.name: place for place, (part, _) in enumerate(kept)}
    choices = (tuple(places[part.name] for part in oneof.fields if part.name in places) for oneof in described.oneofs)
    return protobuf_scan.Message(
        arrow,
        tuple(_field_step(*kept[place]) for place in order),
        tuple(order),
        tuple(choice for choice in choices if len(choice) > 1),
    )


def _field_step(described: Any, reading: _Reading) -> protobuf_scan.Step:
    if described.is_repeated:
        return cast(protobuf_scan.Step, reading.step)
    default = None if described.has_presence else described.default_value
    if default is not None and described.enum_type is not None:
        default = described.enum_type.values_by_number[default].name
    return protobuf_scan.Tagged(protobuf_scan.tag_of(described.number, reading.wire_type), reading.step, default)


def _getter(described: Any) -> arrays.Getter:
    name = described.name
    if described.is_repeated or not described.has_presence:
        return operator.attrgetter(name)
    return lambda found: getattr(found, name) if found.HasField(name) else None
