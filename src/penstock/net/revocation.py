"""Lists of revoked certificates (CRL) of the authorities that are trusted: what they name, and until when.

A certificate is known by its issuer's name and its number. An authority may write its name in one kind of text in
certificates and in another in its lists, so names are compared as RFC 5280 §7.1 has it, not byte by byte.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import WrongSettings
from penstock.net.tls import read_pem

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateRevocationList, Name

PlainName = tuple[frozenset[tuple[str, str | bytes]], ...]
_WHAT: Final = "list of revoked certificates"
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class Revoked:
    """What the lists in a file say.

    Attributes:
        numbers: issuers and numbers of certificates.
        next_update: when the first of the lists is to be replaced, if one says so.
    """

    numbers: frozenset[tuple[PlainName, int]] = frozenset()
    next_update: datetime | None = None


def load_revoked(path: str, authorities: "Iterable[Certificate]") -> Revoked:
    """Each list has to be of one of the authorities. Raises `WrongSettings`."""
    lists = [_parse(path, block + _END + b"\n") for block in read_pem(path, _WHAT, "X509 CRL").split(_END)[:-1]]
    numbers: set[tuple[PlainName, int]] = set()
    for each in lists:
        _check_signed(path, each, authorities)
        issuer = plain_name(each.issuer)
        numbers.update((issuer, revoked.serial_number) for revoked in each)
    ends = (each.next_update_utc for each in lists)
    return Revoked(frozenset(numbers), min((end for end in ends if end is not None), default=None))


def _parse(path: str, block: bytes) -> "CertificateRevocationList":
    from cryptography import x509

    try:
        return x509.load_pem_x509_crl(block[block.index(b"-----BEGIN") :])
    except ValueError as error:
        raise _useless(path, error) from None


def _check_signed(path: str, found: "CertificateRevocationList", authorities: "Iterable[Certificate]") -> None:
    try:
        issuer = plain_name(found.issuer)
        is_ours = any(
            plain_name(each.subject) == issuer and found.is_signature_valid(each.public_key())  # type: ignore[arg-type]
            for each in authorities
        )
    except (ValueError, TypeError) as error:
        raise _useless(path, error) from None
    if not is_ours:
        told = "is not signed by the certificate authority"
        raise WrongSettings(f"the {_WHAT} {path} {told}: {found.issuer.rfc4514_string()}")


def _useless(path: str, error: Exception) -> WrongSettings:
    return WrongSettings(f"the {_WHAT} {path} cannot be used: {error}")


def plain_name(name: "Name") -> PlainName:
    """A name as it is compared: without regard to the kinds of its texts, to capitals, and to how much space there is
    between words.
    """
    return tuple(frozenset((part.oid.dotted_string, _plain(part.value)) for part in relative) for relative in name.rdns)


def _plain(value: str | bytes) -> str | bytes:
    return value if isinstance(value, bytes) else " ".join(value.casefold().split())
