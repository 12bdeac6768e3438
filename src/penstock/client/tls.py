"""TLS with PEM certificates: what a client trusts, and who it is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.client.errors import ClientError

if TYPE_CHECKING:
    import ssl

_CANNOT: Final = ("ssl.cipher.suites", "ssl.engine.factory.class", "ssl.crl.location")
_TO_PEM: Final = (
    "'openssl pkcs12 -in STORE.p12 -out STORE.pem' makes PEM of it ('keytool -importkeystore' PKCS12 of JKS)"
)
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True)
class Tls:
    """
    Attributes:
        trusted: certificates in PEM; None for those that the operating system trusts.
        identity: our certificates and private key in PEM.
        check_certificate: False trusts anybody.
        check_host: whether the certificate has to name the host that was connected to.
    """

    trusted: str | None = field(default=None, repr=False)
    identity: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)
    check_certificate: bool = True
    check_host: bool = True
    versions: tuple[str, ...] = _VERSIONS

    def wrap(self, plain: socket.socket, host: str) -> "ssl.SSLSocket":
        """Shake hands. Raises `OSError`."""
        import ssl

        try:
            return self.make_context().wrap_socket(plain, server_hostname=host)
        except ssl.SSLEOFError:
            raise ConnectionError("the server ended the TLS handshake; does it speak TLS at this port?") from None

    def make_context(self) -> "ssl.SSLContext":
        """Raises `ClientError` for certificates or a key that cannot be read."""
        import ssl

        try:
            context = ssl.create_default_context(cadata=self.trusted)
        except ssl.SSLError as error:
            raise ClientError(f"the trusted certificates (ssl.ca.location, ssl.truststore.*): {error}") from None
        context.check_hostname = self.check_certificate and self.check_host
        if not self.check_certificate:
            context.verify_mode = ssl.CERT_NONE
        by_name = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
        context.minimum_version, context.maximum_version = by_name[self.versions[0]], by_name[self.versions[-1]]
        if self.identity is not None:
            try:
                self._load_identity(context, self.identity)
            except OSError as error:
                told = "the certificate and key of this client (ssl.certificate.*, ssl.keystore.*, ssl.key.*)"
                raise ClientError(f"{told} do not fit each other or ssl.key.password: {error}") from None
        return context

    def _load_identity(self, context: "ssl.SSLContext", identity: str) -> None:
        """The library reads files only: one in memory, so that no key is left on a disk."""
        with open(os.memfd_create("identity"), "wb") as file:
            file.write(identity.encode())
            file.flush()
            # An empty password fails where none would have the library ask for one on the terminal.
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: self.password)


def parse_tls(properties: Mapping[str, str]) -> Tls:
    """Raises `ClientError` naming the property that cannot be."""
    for name in _CANNOT:
        if properties.get(name):
            raise ClientError(f"{name} cannot be set here; leave it out")
    made = Tls(
        trusted=_find_pem(properties, ("ssl.ca.pem", "ssl.truststore.certificates"), _TRUSTED_FILES),
        identity=_find_identity(properties),
        password=properties.get("ssl.key.password") or "",
        check_certificate=properties.get("enable.ssl.certificate.verification", "true").strip().lower() != "false",
        check_host=_parse_host_check(properties.get("ssl.endpoint.identification.algorithm", "https")),
        versions=_parse_versions(properties.get("ssl.enabled.protocols", "")),
    )
    made.make_context()  # a mistake is told here, not by a worker far away
    return made


_TRUSTED_FILES: Final = ("ssl.ca.location", "ssl.truststore.location")


def _find_pem(properties: Mapping[str, str], inline: tuple[str, ...], files: tuple[str, ...]) -> str | None:
    for name in inline:
        if text := properties.get(name):
            return _check_pem(text, name)
    for name in files:
        if path := properties.get(name):
            try:
                data = Path(path).read_bytes()
            except OSError as error:
                raise ClientError(f"{name}={path}: {error.strerror}") from None
            return _check_pem(data.decode("ascii", "replace"), f"{name}={path}")
    return None


def _check_pem(text: str, what: str) -> str:
    if "-----BEGIN " not in text:
        raise ClientError(f"{what} is not PEM, and only PEM can be read; {_TO_PEM}")
    return text


def _find_identity(properties: Mapping[str, str]) -> str | None:
    """The certificate, then the key; a PEM key store has both."""
    certificates = _find_pem(
        properties,
        ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
        ("ssl.certificate.location", "ssl.keystore.location"),
    )
    key = _find_pem(properties, ("ssl.key.pem", "ssl.keystore.key"), ("ssl.key.location",))
    if certificates is None:
        if key is not None:
            raise ClientError("a private key without its certificate: set ssl.certificate.location as well")
        return None
    if key is None and "PRIVATE KEY-----" not in certificates:
        raise ClientError("a certificate without its private key: set ssl.key.location as well")
    return f"{certificates}\n{key or ''}"


def _parse_host_check(said: str) -> bool:
    word = said.strip().lower()
    if word not in ("https", "none", ""):
        raise ClientError(
            f"ssl.endpoint.identification.algorithm={said}: https, or nothing to leave the host unchecked"
        )
    return word == "https"


def _parse_versions(said: str) -> tuple[str, ...]:
    words = [word.strip() for word in said.split(",") if word.strip()]
    found = tuple(version for version in _VERSIONS if version in words)
    if words and not found:
        raise ClientError(f"ssl.enabled.protocols={said}: only {' and '.join(_VERSIONS)} are spoken here")
    return found or _VERSIONS


def explain(error: OSError, name: str) -> ClientError | None:
    """What asking again cannot mend about TLS with a server; None for anything else."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        told = f"the certificate of the server at {name} is not trusted: {error.verify_message.rstrip('.')}"
        return ClientError(f"{told}; ssl.ca.location (ssl.truststore.location) names the certificates that are")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return ClientError(f"no TLS with the server at {name}: {reason}{_hint_at(reason)}")
    return None


def _hint_at(reason: str) -> str:
    if "alert" in reason and "certificate" in reason:
        return "; it wants a certificate of this client: ssl.certificate.location (ssl.keystore.location)"
    return "; does it speak TLS at this port?" if reason == "wrong version number" else ""
