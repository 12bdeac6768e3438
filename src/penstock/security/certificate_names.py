"""A certificate's subject as Java spells it: Kafka makes principals of that, so rules written for Kafka name it.

It is RFC 2253 as `X500Principal.getName()` has it: the last part comes first; what is escaped is every special
character, and spaces at either end; and only nine attributes have names. All others are their number and the bytes of
their value in hexadecimal, `1.2.840.113549.1.9.1=#16056140622e63`, where Python's libraries would write `=a@b.c`.

The bytes are read here (DER, X.690), as those libraries do not keep which kind of string a value was. They come from a
certificate that TLS has checked, and are refused if they are anything else.
"""

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_OID, _SEQUENCE, _SET, _VERSION = 0x06, 0x30, 0x31, 0xA0
_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E
_STRINGS: Final = frozenset({_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP})
_LONGEST: Final = 64 * 1024


def subject_of(certificate: bytes) -> bytes:
    """The subject of a certificate, both as DER. Raises `ValueError`."""
    signed = next(_within(certificate, _SEQUENCE), b"")
    fields = list(_within(signed, _SEQUENCE)) if signed else []
    # The version, which the first ones lack; serial number, how it is signed, by whom, for how long; and whose it is.
    at = 5 if fields and fields[0][0] == _VERSION else 4
    if at >= len(fields):
        raise ValueError("the certificate has no subject")
    return fields[at]


def java_name(name: bytes) -> str:
    """A name as Java spells it. Raises `ValueError`."""
    parts = ["+".join(_spell(pair) for pair in _within(part, _SET)) for part in _within(name, _SEQUENCE)]
    return ",".join(reversed(parts))


def _spell(pair: bytes) -> str:
    """One attribute and its value."""
    kind, value = _within(pair, _SEQUENCE)
    number = _parse_number(kind)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value[0] not in _STRINGS:
        return f"{keyword or number}=#{value.hex()}"
    return f"{keyword}={_escape(_text(value))}"


def _text(value: bytes) -> str:
    content = value[_header(value, 0)[0] :]
    return content.decode(errors="replace")


def _escape(text: str) -> str:
    spelled = ["\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in text]
    begin, end = 0, len(text)
    while begin < end and text[begin] in " \r":
        begin += 1
    while end > begin and text[end - 1] in " \r":
        end -= 1
    return "".join(each if begin <= at < end else f"\\{each}" for at, each in enumerate(spelled))


def _parse_number(item: bytes) -> str:
    """An object identifier in dotted numbers."""
    start, end = _header(item, 0)
    if item[0] != _OID or start == end or item[end - 1] & 0x80:
        raise ValueError("an attribute of a name has no number")
    numbers, number = [], 0
    for byte in item[start:end]:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _within(item: bytes, tag: int) -> Iterator[bytes]:
    """The items that an item holds, each with its header. Raises `ValueError` if it is of another kind."""
    at, end = _header(item, 0)
    if item[0] != tag or end != len(item):
        raise ValueError(f"item of kind {item[0]:#x} and {len(item)} bytes where one of kind {tag:#x} was expected")
    return _items(item, at, end)


def _items(data: bytes, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        _, stop = _header(data, at)
        yield data[at:stop]
        at = stop


def _header(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of an item begins and ends. Raises `ValueError`."""
    if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
        raise ValueError("item that is cut, or of an unknown kind")
    size = data[at + 1]
    start = at + 2
    if size & 0x80:
        length = size & 0x7F
        if not 1 <= length <= 3 or start + length > len(data):
            raise ValueError("item whose length is unknown")
        size = int.from_bytes(data[start : start + length], "big")
        start += length
    if size > _LONGEST or start + size > len(data):
        raise ValueError(f"item of {size} bytes, of which {len(data) - start} are there")
    return start, start + size
