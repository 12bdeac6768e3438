"""Which certificates are brokers': those that name `penstock:broker` as a URI among their alternative names.

That an authority has signed a certificate says whose it is, not what for: the same one may sign those of clients. So
brokers have an authority of their own as well, which `check_files` looks after.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.errors import WrongSettings
from penstock.net.tls import read_pem

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

BROKER_URI: Final = "penstock:broker"
_KNOWN: Final = 256  # certificates that are not parsed again for each connection
_WAY_OUT: Final = (
    "'penstock tls init DIR' makes one, and 'penstock tls issue DIR NAME --broker --host HOST' what it signs"
)


@lru_cache(maxsize=_KNOWN)
def names_broker(certificate: bytes) -> bool:
    """Whether a certificate (DER) is a broker's; one that cannot be read is not."""
    from cryptography import x509

    try:
        parsed = x509.load_der_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        *(ValueError, x509.InvalidVersion, x509.ExtensionNotFound),
        *(x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
    ):
        return False
    return BROKER_URI in names.get_values_for_type(x509.UniformResourceIdentifier)


def check_files(certificate: str, authority: str, authorities_of_clients: Mapping[str, str]) -> None:
    """Look at what brokers show each other before anybody else does.

    Args:
        certificate: this broker's.
        authority: whom brokers trust.
        authorities_of_clients: whom each listener trusts, by what it is called in errors.

    Raises:
        WrongSettings: other brokers would not take the certificate, or a client's authority makes brokers, too.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    if not names_broker(_load(certificate)[0].public_bytes(Encoding.DER)):
        raise WrongSettings(
            f"the certificate {certificate} (cluster.tls_cert) does not name a broker, so other brokers would not take "
            f"it: it needs the URI {BROKER_URI} among its alternative names, as 'penstock tls issue --broker' adds it"
        )
    of_brokers = _load(authority)
    for listener, path in authorities_of_clients.items():
        for each in _load(path):
            if any(_is_of(each, ours) for ours in of_brokers):
                raise WrongSettings(
                    f"{listener} trusts clients by {path}, and brokers trust each other by {authority} "
                    f"(cluster.tls_ca), which has the same authority, {each.subject.rfc4514_string()}, or the one "
                    f"above it: give brokers an authority of their own; {_WAY_OUT}"
                )


def _is_of(theirs: "Certificate", ours: "Certificate") -> bool:
    """Whether it is the same key, whatever certificate it is in by now, or has been signed by it."""
    from cryptography.exceptions import InvalidSignature

    if theirs.public_key() == ours.public_key():
        return True
    try:
        theirs.verify_directly_issued_by(ours)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(path: str) -> "list[Certificate]":
    from cryptography import x509

    text = read_pem(path, "certificate", "CERTIFICATE")
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise WrongSettings(f"the certificate {path} cannot be used: {error}") from None
