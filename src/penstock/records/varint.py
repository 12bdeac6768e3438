"""Zigzag variable-length integers: seven bits to a byte, lowest first, as Kafka's record format writes them.

A reader of many integers handles the one-byte case itself (`byte >> 1 ^ -(byte & 1)` when `byte < 0x80`) and
calls in here for the rest: the call costs more than the work.
"""

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def encode(value: int) -> bytes:
    """One signed integer of at most 64 bits; the 32-bit form is the same bytes."""
    if -64 <= value < 64:
        return _ONE_BYTE[value + 64]
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    if rest >> 64:
        raise ValueError(f"{value} does not fit in 64 bits")
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """A 32-bit integer at `position`.

    Returns:
        The value and the position after it.

    Raises:
        IndexError: `data` ends inside the integer.
        ValueError: it is longer than five bytes or does not fit in 32 bits.
    """
    # Two bytes reach 8,191: most record and value lengths, and most timestamp deltas.
    if data[position] > 0x7F and data[position + 1] < 0x80:
        raw = data[position] & 0x7F | data[position + 1] << 7
        return raw >> 1 ^ -(raw & 1), position + 2
    return _decode_long(data, position, MAX_VARINT_BYTES, 32)


def decode_varlong(data: bytes, position: int) -> tuple[int, int]:
    """A 64-bit integer at `position`; otherwise as `decode_varint`, with ten bytes."""
    if data[position] > 0x7F and data[position + 1] < 0x80:
        raw = data[position] & 0x7F | data[position + 1] << 7
        return raw >> 1 ^ -(raw & 1), position + 2
    return _decode_long(data, position, MAX_VARLONG_BYTES, 64)


def _decode_long(data: bytes, position: int, max_bytes: int, bits: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, max_bytes * 7, 7):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                raise ValueError(f"variable-length integer does not fit in {bits} bits")
            return raw >> 1 ^ -(raw & 1), position
    raise ValueError(f"variable-length integer is longer than {max_bytes} bytes")


_ONE_BYTE = tuple(bytes((value << 1 if value >= 0 else (~value << 1) | 1,)) for value in range(-64, 64))
