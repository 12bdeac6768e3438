"""Receipts: what a consumer gives back to say what has become of a message that it was leased.

A receipt is one word of 34 characters, which consumers keep and never read: a version, the partition, the offset, the
lease's id and a checksum, big-endian, in base64 that is safe in addresses and file names. It names no queue; whoever
takes one says which it is for. It is no secret and proves nothing: whether the lease is still the message's is for the
ledger to say.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import Code, PenstockError

_VERSION: Final = 1
_BODY: Final = Struct(">BIqQ")  # version, partition, offset, lease id
_CRC: Final = Struct(">I")
_BYTES: Final = _BODY.size + _CRC.size
RECEIPT_CHARS: Final = -(-_BYTES * 4 // 3)
_SHOWN_CHARS: Final = 60


class Receipt(NamedTuple):
    """One message in one lease."""

    partition: int
    offset: int
    lease_id: int


def make_receipt(partition: int, offset: int, lease_id: int) -> str:
    body = _BODY.pack(_VERSION, partition, offset, lease_id)
    return urlsafe_b64encode(body + _CRC.pack(crc32c(body))).rstrip(b"=").decode()


def parse_receipt(text: str) -> Receipt:
    """Raises PenstockError INVALID_REQUEST, which says what is wrong with it."""
    if len(text) != RECEIPT_CHARS:
        raise _wrong(text, f"has {len(text)} characters, and not {RECEIPT_CHARS}")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if urlsafe_b64encode(data).rstrip(b"=") != text.encode(errors="replace"):  # decoding skips what it does not know
        raise _wrong(text, "is no base64 as receipts have it")
    version, partition, offset, lease_id = _BODY.unpack_from(data)
    if crc32c(data[: _BODY.size]) != _CRC.unpack_from(data, _BODY.size)[0]:
        raise _wrong(text, "is not as it was given: its checksum differs")
    if version != _VERSION:
        raise _wrong(text, f"has version {version}, and {_VERSION} is known here")
    if offset < 0:
        raise _wrong(text, f"is for offset {offset}")
    return Receipt(partition, offset, lease_id)


def _wrong(text: str, what: str) -> PenstockError:
    shown = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
    return PenstockError(
        Code.INVALID_REQUEST,
        f"receipt {shown!r} {what}",
        help="give back the receipt that came with the message, whole",
    )
