"""Protobuf values, all at once and one by one; Google's own messages write and judge them."""

import datetime as dt
import decimal
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.errors import FormatError, OptionError
from penstock.spark.formats import open_format
from penstock.spark.formats.protobuf import ProtobufFormat
from penstock.spark.formats.scanning import MAX_ITEMS

Kind = descriptor_pb2.FieldDescriptorProto
UTC = dt.UTC
SCALARS = {
    "d": Kind.TYPE_DOUBLE,
    "f": Kind.TYPE_FLOAT,
    "i64": Kind.TYPE_INT64,
    "u64": Kind.TYPE_UINT64,
    "i32": Kind.TYPE_INT32,
    "x64": Kind.TYPE_FIXED64,
    "x32": Kind.TYPE_FIXED32,
    "flag": Kind.TYPE_BOOL,
    "name": Kind.TYPE_STRING,
    "raw": Kind.TYPE_BYTES,
    "u32": Kind.TYPE_UINT32,
    "sx32": Kind.TYPE_SFIXED32,
    "sx64": Kind.TYPE_SFIXED64,
    "s32": Kind.TYPE_SINT32,
    "s64": Kind.TYPE_SINT64,
}


def add(
    message: Any, name: str, number: int, kind: int, type_name: str = "", *, repeated: bool = False, **more: Any
) -> None:
    message.field.add(
        name=name, number=number, type=kind, type_name=type_name or None, label=3 if repeated else 1, **more
    )


def new_file(name: str = "r.proto", syntax: str = "proto3", *imports: str) -> Any:
    return descriptor_pb2.FileDescriptorProto(name=name, package="t", syntax=syntax, dependency=imports)


def everything() -> Any:
    """Every kind of field but maps, which are never read all at once; numbers are not in the order of the fields."""
    file = new_file("all.proto", "proto3", "google/protobuf/timestamp.proto")
    colour = file.enum_type.add(name="Colour")
    for number, name in ((0, "NONE"), (7, "RED"), (-1, "ODD")):
        colour.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    add(place, "x", 1, Kind.TYPE_INT32)
    add(place, "why", 2, Kind.TYPE_STRING)
    message = file.message_type.add(name="All")
    for number, (name, kind) in enumerate(SCALARS.items()):
        add(message, name, 20 - number, kind)
    add(message, "colour", 21, Kind.TYPE_ENUM, ".t.Colour")
    add(message, "place", 22, Kind.TYPE_MESSAGE, ".t.Place")
    add(message, "at", 23, Kind.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    add(message, "maybe", 24, Kind.TYPE_INT32, proto3_optional=True, oneof_index=1)
    add(message, "one", 2000, Kind.TYPE_STRING, oneof_index=0)
    add(message, "other", 2001, Kind.TYPE_MESSAGE, ".t.Place", oneof_index=0)
    add(message, "packed", 2002, Kind.TYPE_INT64, repeated=True)
    add(message, "colours", 2003, Kind.TYPE_ENUM, ".t.Colour", repeated=True)
    add(message, "names", 2004, Kind.TYPE_STRING, repeated=True)
    add(message, "places", 2005, Kind.TYPE_MESSAGE, ".t.Place", repeated=True)
    add(message, "moments", 2006, Kind.TYPE_MESSAGE, ".google.protobuf.Timestamp", repeated=True)
    message.oneof_decl.add(name="choice")
    message.oneof_decl.add(name="_maybe")
    return file


def opened(file: Any, name: str, folder: Path, **more: str) -> ProtobufFormat:
    path = folder / "set.desc"
    path.write_bytes(
        descriptor_pb2.FileDescriptorSet(file=[file] if not isinstance(file, list) else file).SerializeToString()
    )
    form = open_format({"format": "protobuf", "schema.file": str(path), "message": name, **more})
    assert isinstance(form, ProtobufFormat)
    return form


def classes(*files: Any) -> Any:
    """Finds a message's class by name, without the code under test."""
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, empty_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def tables(form: ProtobufFormat, values: list[bytes | None]) -> tuple[pa.Table, pa.Table]:
    """What `decode` says and what the slow way says."""
    schema = to_arrow_schema(form.fields, timezone="UTC")
    found = []
    for decode in (form.decode, form.decode_slowly):
        arrays, errors = decode(pa.array(values, pa.binary()))
        assert [array.type for array in arrays] == [field.type for field in schema]
        for array in arrays:
            array.validate(full=True)
        found.append(pa.table([*arrays, errors], [*schema.names, "_error"]))
    return found[0], found[1]


def plain(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for dates and times: Python has none beyond the year 9999."""
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    return kind


def raw_rows(form: ProtobufFormat, values: list[bytes | None]) -> list[str]:
    """Each row as text, dates and times as numbers; both ways, which must agree."""
    quick, slow = (
        [repr(row) for row in table.cast(pa.schema([(f.name, plain(f.type)) for f in table.schema])).to_pylist()]
        for table in tables(form, values)
    )
    assert quick == slow
    return quick


def rows(form: ProtobufFormat, values: list[bytes | None]) -> list[dict[str, Any]]:
    raw_rows(form, values)
    return tables(form, values)[0].to_pylist(maps_as_pydicts="strict")


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> ProtobufFormat:
    return opened(everything(), "t.All", tmp_path_factory.mktemp("set"))


ALL = classes(everything())("t.All")


def test_columns_of_every_type(form: ProtobufFormat) -> None:
    assert form.fields.simpleString() == (
        "struct<d:double,f:float,i64:bigint,u64:decimal(20,0),i32:int,x64:decimal(20,0),x32:bigint,flag:boolean,name:string,"
        "raw:binary,u32:bigint,sx32:int,sx64:bigint,s32:int,s64:bigint,colour:string,place:struct<x:int,why:string>,at:timestamp,"
        "maybe:int,one:string,other:struct<x:int,why:string>,packed:array<bigint>,colours:array<string>,names:array<string>,"
        "places:array<struct<x:int,why:string>>,moments:array<timestamp>>"
    )


_place = st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1), "why": st.text(max_size=5)})
_moment = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), timezones=st.just(UTC))
_int64 = st.integers(-(2**63), 2**63 - 1)
_CHOICES: list[dict[str, Any]] = [{}, {"one": ""}, {"one": "x"}, {"other": {"x": 1, "why": ""}}]
_messages = st.fixed_dictionaries(
    {
        "d": st.floats(allow_nan=False),
        "f": st.floats(width=32, allow_nan=False),
        "i64": _int64 | st.just(0),
        "u64": st.integers(0, 2**64 - 1),
        "i32": st.integers(-(2**31), 2**31 - 1),
        "x64": st.integers(0, 2**64 - 1),
        "x32": st.integers(0, 2**32 - 1),
        "flag": st.booleans(),
        "name": st.text(max_size=150),
        "raw": st.binary(max_size=20),
        "u32": st.integers(0, 2**32 - 1),
        "sx32": st.integers(-(2**31), 2**31 - 1),
        "sx64": _int64,
        "s32": st.integers(-(2**31), 2**31 - 1),
        "s64": _int64,
        "colour": st.sampled_from(["NONE", "RED", "ODD"]),
        "place": st.none() | _place,
        "at": st.none() | _moment,
        "maybe": st.none() | st.just(0) | st.integers(-5, 5),
        "packed": st.lists(_int64, max_size=MAX_ITEMS + 1),
        "colours": st.lists(st.sampled_from(["NONE", "RED", "ODD"]), max_size=3),
        "names": st.lists(st.text(max_size=5), max_size=MAX_ITEMS + 1),
        "places": st.lists(_place, max_size=3),
        "moments": st.lists(_moment, max_size=2),
    }
).flatmap(lambda value: st.sampled_from(_CHOICES).map(lambda choice: {**value, "one": None, "other": None, **choice}))


def encoded(value: dict[str, Any]) -> bytes:
    return ALL(**{name: part for name, part in value.items() if part is not None}).SerializeToString()


@settings(deadline=None)
@given(values=st.lists(_messages, max_size=4), place=st.integers(0, 4), bad=st.none() | st.just(b"\x0a\xff"))
def test_good_values_round_trip_whatever_stands_between(
    form: ProtobufFormat, values: list[dict[str, Any]], place: int, bad: bytes | None
) -> None:
    place = min(place, len(values))
    raw = [encoded(value) for value in values]
    found = rows(form, [*raw[:place], bad, *raw[place:]])
    between = found.pop(place)
    assert (between.pop("_error") is None) == (bad is None)
    assert set(between.values()) == {None}
    assert found == [
        {**value, "u64": decimal.Decimal(value["u64"]), "x64": decimal.Decimal(value["x64"]), "_error": None}
        for value in values
    ]


@settings(deadline=None)
@given(values=st.lists(_messages, min_size=1, max_size=3), data=st.data())
def test_damaged_values_mean_the_same_both_ways(
    form: ProtobufFormat, values: list[dict[str, Any]], data: st.DataObject
) -> None:
    damaged: list[bytes | None] = []
    for value in values:
        raw = bytearray(encoded(value))
        for place in data.draw(st.lists(st.integers(0, max(0, len(raw) - 1)), max_size=2)):
            if raw:
                raw[place] = data.draw(st.sampled_from([0, 1, 2, 8, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        cut = data.draw(st.integers(0, len(raw) * 2))
        damaged.append(bytes(raw[:cut]) + data.draw(st.binary(max_size=2)))
    assert raw_rows(form, damaged) == [raw_rows(form, [value])[0] for value in damaged]


@settings(deadline=None)
@given(values=st.lists(st.none() | st.binary(max_size=12), max_size=6))
def test_random_bytes_never_raise_and_mean_the_same_both_ways(form: ProtobufFormat, values: list[bytes | None]) -> None:
    assert raw_rows(form, values) == [raw_rows(form, [value])[0] for value in values]


def small(*kinds: int, folder: Path, syntax: str = "proto3") -> ProtobufFormat:
    file = new_file(syntax=syntax)
    message = file.message_type.add(name="R")
    for number, kind in enumerate(kinds, 1):
        add(message, f"f{number}", number, kind)
    return opened(file, "t.R", folder)


def test_fields_in_any_order_unknown_ones_and_repeats(tmp_path: Path) -> None:
    form = small(Kind.TYPE_INT32, Kind.TYPE_STRING, folder=tmp_path)
    found = rows(
        form,
        [b"\x12\x01x\x08\x05", b"\x08\x05\x12\x01x\x50\x01", b"\x08\x01\x08\x05\x12\x01x", b"\x08\x05\x12\x01x", b""],
    )
    assert found == [{"f1": 5, "f2": "x", "_error": None}] * 4 + [{"f1": 0, "f2": "", "_error": None}]


def test_the_last_of_a_oneof_counts(form: ProtobufFormat) -> None:
    both = encoded({"one": "x"}) + encoded({"other": {"x": 1, "why": ""}})
    (row,) = rows(form, [both])
    assert (row["one"], row["other"]) == (None, {"x": 1, "why": ""})


def test_plain_values_are_all_read_at_once(form: ProtobufFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    full: dict[str, Any] = {name: 1 for name in SCALARS if name not in ("name", "raw", "flag")}
    full |= {"name": "é", "raw": b"\xff", "flag": True, "i32": -1, "colour": "ODD", "place": {"x": 1}, "maybe": 0}
    full |= {
        "at": dt.datetime(2024, 1, 1, tzinfo=UTC),
        "one": "x",
        "packed": [-1] * MAX_ITEMS,
        "colours": ["RED", "NONE"],
    }
    full |= {
        "names": ["", "x"] * (MAX_ITEMS // 2),
        "places": [{}, {"why": "x"}],
        "moments": [dt.datetime(1900, 1, 1, tzinfo=UTC)],
    }
    monkeypatch.setattr(form, "decode_slowly", lambda values: pytest.fail(f"{len(values)} values the slow way"))
    values = pa.array([encoded(full), None, b"", encoded({"other": {}})], pa.binary())
    assert form.decode(values)[1].null_count == 4


def test_a_long_packed_list_whose_end_looks_like_a_field(tmp_path: Path) -> None:
    file = new_file()
    message = file.message_type.add(name="R")
    add(message, "all", 1, Kind.TYPE_INT64, repeated=True)
    add(message, "x", 2, Kind.TYPE_INT32)
    items = [1] * MAX_ITEMS + [0x10, 0x05]
    (row,) = rows(opened(file, "t.R", tmp_path), [b"\x0a" + bytes([len(items), *items])])
    assert row == {"all": items, "x": 0, "_error": None}


def test_wide_numbers_are_cut_as_the_parser_does(tmp_path: Path) -> None:
    form = small(Kind.TYPE_INT32, Kind.TYPE_BOOL, Kind.TYPE_UINT32, folder=tmp_path)
    (row,) = rows(form, [b"\x08\xff\xff\xff\xff\xff\x01" + b"\x10\x02" + b"\x18\x81\x80\x80\x80\x10"])
    assert row == {"f1": -1, "f2": True, "f3": 1, "_error": None}


def test_enum_numbers_without_a_name(form: ProtobufFormat) -> None:
    (row,) = rows(form, [b"\xa8\x01\x05"])
    assert row["colour"] == "5"


@pytest.mark.parametrize("value", [b"\x0a", b"\x07", b"\x0a\x05ab", b"\x62\x01\xff", b"\x00\x00"])
def test_what_is_no_message_gives_a_reason(form: ProtobufFormat, value: bytes) -> None:
    (row,) = rows(form, [value])
    reason = row.pop("_error")
    assert reason.startswith("protobuf: ") and reason.endswith(value.hex())
    assert set(row.values()) == {None}


def test_a_timestamp_beyond_spark_gives_a_reason(form: ProtobufFormat) -> None:
    far = ALL()
    far.at.seconds = 2**62
    (row,) = rows(form, [far.SerializeToString()])
    assert row["_error"].startswith("protobuf: at: ") and row["d"] is None


def test_texts_of_proto2_must_be_utf8_too(tmp_path: Path) -> None:
    form = small(Kind.TYPE_STRING, folder=tmp_path, syntax="proto2")
    found = rows(form, [b"\x0a\x02\xc3\xa9", b"\x0a\x01\xff", b""])
    assert [row["f1"] for row in found] == ["é", None, None]
    assert [row["_error"] is None for row in found] == [True, False, True]


def test_maps_groups_and_messages_without_fields(tmp_path: Path) -> None:
    file = new_file("m.proto", "proto2", "google/protobuf/empty.proto")
    message = file.message_type.add(name="R")
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, Kind.TYPE_STRING)
    add(entry, "value", 2, Kind.TYPE_INT64)
    group = message.nested_type.add(name="G")
    add(group, "x", 1, Kind.TYPE_INT32)
    add(message, "counts", 1, Kind.TYPE_MESSAGE, ".t.R.CountsEntry", repeated=True)
    add(message, "g", 2, Kind.TYPE_GROUP, ".t.R.G")
    add(message, "nothing", 3, Kind.TYPE_MESSAGE, ".google.protobuf.Empty")
    form = opened(file, "t.R", tmp_path)
    assert form.fields.simpleString() == "struct<counts:map<string,bigint>,g:struct<x:int>>"
    value = classes(file)("t.R")(counts={"a": 1, "b": 2}, g={"x": 5}, nothing={}).SerializeToString()
    assert rows(form, [value, b""]) == [
        {"counts": {"a": 1, "b": 2}, "g": {"x": 5}, "_error": None},
        {"counts": {}, "g": None, "_error": None},
    ]


def test_one_bad_value_among_many_is_alone(tmp_path: Path) -> None:
    form = small(Kind.TYPE_INT32, Kind.TYPE_STRING, folder=tmp_path)
    values: list[bytes | None] = [b"\x08\x05\x12\x01x"] * 5_000
    values[4_000] = b"\x12\x05x"
    values[17] = None
    (numbers, texts), errors = form.decode(pa.array(values, pa.binary()))
    assert [row for row, text in enumerate(errors.to_pylist()) if text] == [4_000]
    assert numbers.to_pylist() == [None if row in (17, 4_000) else 5 for row in range(5_000)]
    assert texts.null_count == 2


def test_messages_that_hold_themselves_are_refused(tmp_path: Path) -> None:
    file = new_file()
    add(file.message_type.add(name="R"), "next", 1, Kind.TYPE_MESSAGE, ".t.R")
    with pytest.raises(OptionError, match=r"t\.R\.next contains itself"):
        opened(file, "t.R", tmp_path)


def test_a_few_messages_that_make_a_huge_tree_are_refused(tmp_path: Path) -> None:
    file = new_file()
    add(file.message_type.add(name="M0"), "x", 1, Kind.TYPE_INT32)
    for level in range(1, 20):
        message = file.message_type.add(name=f"M{level}")
        for number in (1, 2):
            add(message, f"f{number}", number, Kind.TYPE_MESSAGE, f".t.M{level - 1}")
    with pytest.raises(OptionError, match="more than 5000 fields"):
        opened(file, "t.M19", tmp_path)


def test_nesting_is_bounded(tmp_path: Path) -> None:
    file = new_file()
    add(file.message_type.add(name="M0"), "x", 1, Kind.TYPE_INT32)
    for level in range(1, 60):
        add(file.message_type.add(name=f"M{level}"), "f", 1, Kind.TYPE_MESSAGE, f".t.M{level - 1}")
    with pytest.raises(OptionError, match="deeper than 50"):
        opened(file, "t.M59", tmp_path)


def test_imports_in_any_order_and_well_known_ones_left_out(tmp_path: Path) -> None:
    base, user = (
        new_file("base.proto"),
        new_file("user.proto", "proto3", "base.proto", "google/protobuf/timestamp.proto"),
    )
    add(base.message_type.add(name="B"), "x", 1, Kind.TYPE_INT32)
    message = user.message_type.add(name="U")
    add(message, "b", 1, Kind.TYPE_MESSAGE, ".t.B")
    add(message, "at", 2, Kind.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    form = opened([user, base, everything()], "t.U", tmp_path)
    arrived = pickle.loads(pickle.dumps(form))  # noqa: S301
    assert arrived.fields == form.fields
    assert rows(arrived, [b"\x0a\x02\x08\x05\x12\x02\x08\x01"]) == [
        {"b": {"x": 5}, "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "_error": None}
    ]
    with pytest.raises(FormatError, match=r"base\.proto.*include_imports"):
        opened(user, "t.U", tmp_path)


def test_a_nested_message_may_be_the_value(tmp_path: Path) -> None:
    file = new_file()
    outer = file.message_type.add(name="Outer")
    add(outer.nested_type.add(name="Inner"), "x", 1, Kind.TYPE_INT32)
    assert rows(opened(file, ".t.Outer.Inner", tmp_path), [b"\x08\x05"]) == [{"x": 5, "_error": None}]
    with pytest.raises(OptionError, match=r"t\.Outer has no fields"):
        opened(file, "t.Outer", tmp_path)


@pytest.mark.parametrize(("name", "words"), [("", "must name one"), ("t.Al", "t.All"), ("nix", "is not in")])
def test_a_message_that_is_not_there(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        opened(everything(), name, tmp_path)


@pytest.mark.parametrize("content", [b'syntax = "proto3"; message R {}', b"\xff\xff"])
def test_a_file_that_is_no_set_names_the_command(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.proto"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="protoc --include_imports -o"):
        open_format({"format": "protobuf", "schema.file": str(path), "message": "R"})


def test_descriptors_that_do_not_fit_together(tmp_path: Path) -> None:
    file = new_file()
    add(file.message_type.add(name="R"), "x", 1, Kind.TYPE_MESSAGE, ".t.Missing")
    with pytest.raises(FormatError, match="do not fit together"):
        opened(file, "t.R", tmp_path)
