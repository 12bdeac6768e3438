"""Typed columns from a record's value: JSON, MessagePack, Avro, Protobuf.

Owns what bytes mean under a schema; knows nothing of brokers, offsets or Spark sessions, and needs no JVM. No value
raises: one that cannot be read gives null fields and a reason.

    __init__.py    `open_format`, `ValueFormat`
    ddl.py         Spark's schema strings, parsed without a JVM
    fields.py      names and nullability of the columns; options all formats share
    arrays.py      decoded values to Arrow arrays, with an error for each row that does not fit
    documents.py   json, msgpack
    scanning.py    numbers and slices at many places of a buffer at once
    avro.py        avro: schema to columns; value by value with fastavro
    avro_scan.py   avro: all values at once, where the schema allows
    protobuf.py    protobuf: descriptors to columns; value by value with Google's parser
    protobuf_scan.py   protobuf: all values at once, where the message allows
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.spark.errors import OptionError
from penstock.spark.formats.fields import Decoded

FORMATS = ("json", "avro", "protobuf", "msgpack")


class ValueFormat(Protocol):
    """A way to read values; small and picklable, as every task gets one."""

    fields: StructType

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Reads values; raises for none of them.

        Args:
            values: as records hold them; null (a tombstone) gives null fields and no error.

        Returns:
            An array for each of `fields`, of the type Spark wants, and one of texts: why a value could not be read,
            null where it could.
        """


def open_format(options: Mapping[str, str]) -> ValueFormat:
    """The format that options ask for; schema files are read here, once.

    Args:
        options: the `value.*` options without "value.", names in lower case: format, schema, schema.file, message,
            prefix.

    Raises:
        OptionError: a format or option nobody knows, or one that lacks another.
        FormatError: a schema that cannot be read.
    """
    kind = options.get("format", "").strip().lower()
    options = {**options, "format": kind}
    match kind:
        case "json" | "msgpack":
            from penstock.spark.formats.documents import open_documents

            return open_documents(kind, options)
        case "avro":
            from penstock.spark.formats.avro import open_avro

            return open_avro(options)
        case "protobuf":
            from penstock.spark.formats.protobuf import open_protobuf

            return open_protobuf(options)
    near = difflib.get_close_matches(kind, FORMATS, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; take one of {', '.join(FORMATS)}"
    raise OptionError(f"value.format={kind} is not known{hint}")
