"""What is in a file of certificates, and whether the key beside it is theirs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.cli.failure import USAGE, CommandError
from penstock.errors import StartupError
from penstock.net.certificates import check_private
from penstock.net.tls import read_pem
from penstock.security.certificate_names import java_name

_USES: Final = {ExtendedKeyUsageOID.SERVER_AUTH: "server", ExtendedKeyUsageOID.CLIENT_AUTH: "client"}


@dataclass(frozen=True, slots=True)
class CertificateView:
    """Attributes:
    subject, issuer: as Java spells them, and so as rules in Kafka name them.
    names: the hosts, and what else it is for, each with its kind in front.
    days_left: whole ones; below zero when it has ended.
    uses: `server`, `client`, or the number of another use; none is any.
    """

    subject: str
    issuer: str
    names: list[str]
    begins: datetime
    ends: datetime
    days_left: int
    serial: str
    is_authority: bool
    uses: list[str]

    @property
    def term(self) -> str:
        """How long it is still good, for people."""
        if self.days_left < 0:
            return f"ended {_days(-self.days_left - 1)} ago"
        return f"{_days(self.days_left)} left"

    def plain(self) -> dict[str, Any]:
        """For scripts."""
        return {**asdict(self), "begins": self.begins.isoformat(), "ends": self.ends.isoformat()}


@dataclass(frozen=True, slots=True)
class KeyView:
    """Attributes:
    fits: whether it is the first certificate's; None if it cannot be read.
    problem: why a broker would not take it.
    """

    file: str
    mode: str
    fits: bool | None
    problem: str | None


def view_certificates(path: Path, now: datetime) -> list[CertificateView]:
    """All in a file, in its order. Raises `CommandError`, or `StartupError` for what cannot be read."""
    with _oddities():
        return [_view(each, path, now) for each in _load(path)]


def view_key(certificate: Path, key: Path | None) -> KeyView | None:
    """The key of a certificate; None if there is none.

    Args:
        key: None looks for it beside the certificate, under its name with `.key`, and in its own file.
    """
    path = key or _find_key(certificate)
    if path is None:
        return None
    fits: bool | None = None
    try:
        with _oddities():
            fits, problem = _compare(certificate, path)
        if problem is None:
            check_private(str(path), "private key")
    except StartupError as error:
        if key is not None and fits is None:  # it was asked for, and cannot be read
            raise
        problem = str(error)
    return KeyView(str(path), f"{path.stat().st_mode & 0o7777:04o}", fits, problem)


@contextmanager
def _oddities() -> Iterator[None]:
    """Certificates that are odd are shown without a word of the library: some old authorities have serial number 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        yield


def _load(path: Path) -> list[x509.Certificate]:
    text = read_pem(str(path), "certificate", "CERTIFICATE")
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise CommandError(f"the certificate {path} cannot be read: {error}", code=USAGE) from None


def _view(certificate: x509.Certificate, path: Path, now: datetime) -> CertificateView:
    try:
        return CertificateView(
            java_name(certificate.subject.public_bytes()),
            java_name(certificate.issuer.public_bytes()),
            _names(certificate),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            (certificate.not_valid_after_utc - now) // timedelta(days=1),
            f"{certificate.serial_number:x}",
            _is_authority(certificate),
            _uses(certificate),
        )
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CommandError(f"the certificate {path} cannot be read: {error}", code=USAGE) from None


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    kinds: dict[type, str] = {
        x509.DNSName: "DNS",
        x509.IPAddress: "IP",
        x509.RFC822Name: "email",
        x509.UniformResourceIdentifier: "URI",
    }
    return [f"{kinds.get(type(each), type(each).__name__)}:{each.value}" for each in found]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _uses(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return []
    return [_USES.get(each, each.dotted_string) for each in found]


def _find_key(certificate: Path) -> Path | None:
    beside = certificate.with_suffix(".key")
    if beside != certificate and beside.is_file():
        return beside
    return certificate if b"PRIVATE KEY-----" in certificate.read_bytes() else None


def _compare(certificate: Path, key: Path) -> tuple[bool | None, str | None]:
    text = read_pem(str(key), "private key", "PRIVATE KEY", has_password=True)
    try:
        public = serialization.load_pem_private_key(text, None).public_key()
    except TypeError:
        return None, f"the private key {key} has a password, so nobody can tell whose it is without"
    except (ValueError, UnsupportedAlgorithm) as error:
        return None, f"the private key {key} cannot be read: {error}"
    if public == _load(certificate)[0].public_key():
        return True, None
    return False, f"the private key {key} is not the one of the certificate {certificate}"


def _days(count: int) -> str:
    if count == 0:
        return "less than a day"
    return "1 day" if count == 1 else f"{count:,} days"
