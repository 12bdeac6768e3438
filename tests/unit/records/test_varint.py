"""Zigzag integers at the edges of their sizes."""

import pytest

from penstock.records import varint


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_32_bits(value: int, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert varint.encode(value) == data
    assert varint.decode_varint(b"." + data + b".", 1) == (value, 1 + len(data))
    assert varint.decode_varlong(b"." + data + b".", 1) == (value, 1 + len(data))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_64_bits(value: int) -> None:
    data = varint.encode(value)
    assert varint.decode_varlong(data, 0) == (value, len(data))
    with pytest.raises(ValueError, match=r"32 bits|5 bytes"):
        varint.decode_varint(data, 0)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_more_than_64_bits(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        varint.encode(value)


def test_overlong() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        varint.decode_varint(b"\x80" * 5 + b"\x00", 0)
    with pytest.raises(ValueError, match="10 bytes"):
        varint.decode_varlong(b"\x80" * 10 + b"\x00", 0)
    with pytest.raises(ValueError, match="64 bits"):
        varint.decode_varlong(b"\xff" * 9 + b"\x02", 0)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x80", b"\xff\xff\xff\xff"])
def test_cut(data: bytes) -> None:
    with pytest.raises(IndexError):
        varint.decode_varint(data, 0)
    with pytest.raises(IndexError):
        varint.decode_varlong(data, 0)
