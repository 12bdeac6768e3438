"""TLS contexts from PEM files: 1.2 and 1.3, ciphers that authenticate what they hide, certificates on both sides."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock import obstacles
from penstock.errors import WrongSettings

_CIPHERS_OF_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # those of 1.3 are all right
_OPTIONS: Final = ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
_NOT_TAKEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE": "it is no good",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has ended",
        "SSLV3_ALERT_CERTIFICATE_REVOKED": "it is revoked",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it is no good",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not for this use",
        "TLSV1_ALERT_UNKNOWN_CA": "it is of an authority that is not trusted there",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED": "none was shown",
    }
)
"""What a peer says of the certificate that it was shown (RFC 8446 §6.2)."""


class CertificateRefused(OSError):
    """We do not take the certificate that a peer has shown, although its authority is one that we trust."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """
    Attributes:
        certificate: our own, with those between it and the authority behind it.
        key: its private key, without a password; may be the same file.
        authority: the certificates that the other side's has to come from; None to ask a client for none, and to trust
            what the operating system trusts of a server.
    """

    certificate: str
    key: str
    authority: str | None = None

    def make_server_context(self) -> ssl.SSLContext:
        """For a listener. With an authority, clients need a certificate of it. Raises `WrongSettings`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._prepare(context)
        if self.authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def make_client_context(self) -> ssl.SSLContext:
        """For connections we make; the server's certificate has to name its host. Raises `WrongSettings`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._prepare(context)
        if self.authority is None:
            context.load_default_certs()
        return context

    def _prepare(self, context: ssl.SSLContext) -> None:
        harden(context)
        read_pem(self.certificate, "certificate", "CERTIFICATE")
        read_pem(self.key, "private key", "PRIVATE KEY")
        try:
            # Without one the library would ask for a password on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except ssl.SSLError as error:
            told = f"the certificate {self.certificate} and the private key {self.key} cannot be used"
            hint = "; the key is not the one of the certificate" if "mismatch" in reason_of(error) else ""
            raise WrongSettings(f"{told}: {reason_of(error)}{hint}") from None
        if self.authority is not None:
            read_pem(self.authority, "certificate authority", "CERTIFICATE")
            try:
                context.load_verify_locations(cafile=self.authority)
            except ssl.SSLError as error:
                told = f"the certificate authority {self.authority} cannot be used"
                raise WrongSettings(f"{told}: {reason_of(error)}") from None


def harden(context: ssl.SSLContext) -> None:
    """TLS 1.2 and 1.3, ciphers that authenticate what they hide, no renegotiation, no compression."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS_OF_1_2)
    context.options |= _OPTIONS


def read_pem(path: str, what: str, kind: str, *, has_password: bool = False) -> bytes:
    """A file that has a PEM block of this kind. Raises `WrongSettings`, or `StartupError`.

    Args:
        has_password: whether the password of a private key is known.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise obstacles.refusal(f"cannot read the {what} {obstacles.tell_path(error, 'file')}", error) from None
    if f"{kind}-----".encode() not in text:
        raise WrongSettings(f"the {what} {path} has no '-----BEGIN {kind}-----': only PEM can be read")
    if kind == "PRIVATE KEY" and b"ENCRYPTED" in text and not has_password:
        way_out = f"'openssl pkey -in {path} -out PLAIN.pem' makes one without"
        raise WrongSettings(f"the {what} {path} has a password and cannot be read; {way_out}")
    return text


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's own words, or ours."""
    reason: str | None = getattr(error, "reason", None)  # which only OpenSSL sets
    return reason.lower().replace("_", " ") if reason else str(error)


def tell(error: OSError) -> str:
    """Why a connection ends, for logs: whose certificate is at fault, if one is."""
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message or reason_of(error)}"
    return tell_not_taken(error) or reason_of(error)


def tell_not_taken(error: OSError) -> str | None:
    """That the peer does not take our certificate, and why; None if it says something else."""
    told = _NOT_TAKEN.get(getattr(error, "reason", None) or "")
    return f"it does not take the certificate that this side has shown: {told}" if told is not None else None
