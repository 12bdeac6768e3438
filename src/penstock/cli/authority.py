"""A certificate authority in a directory, for trying TLS out, and what it signs.

    ca.pem, ca.key          the authority: a certificate that everybody may have, and a key that nobody else may
    NAME.pem, NAME.key      what it has signed

Keys are of the curve P-256, which every TLS library has had for long, in PKCS #8 without a password.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock import obstacles
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.new_files import write_new
from penstock.protocols.internal.broker_certificate import BROKER_URI

CA: Final = "ca"
_EARLIER: Final = timedelta(hours=1)
"""A certificate is good a little before it is made: not everybody's clock is ours."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,63}")  # 64 is the most that X.520 has for a common name
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class Made:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, directory: Path, now: datetime) -> "Authority":
        """Raises `CommandError` if what is there cannot sign."""
        files = _files(directory, CA)
        try:
            certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        except FileNotFoundError as error:
            told = f"there is no authority in {directory}: {error.filename} is not there"
            raise CommandError(f"{told}; make one with 'penstock tls init {directory}'", code=USAGE) from None
        except OSError as error:
            raise CommandError(obstacles.tell_path(error), code=USAGE) from None
        except (ValueError, TypeError) as error:  # TypeError is a key that has a password
            told = f"the authority in {directory} cannot be used: {error}"
            raise CommandError(f"{told}; make another one with 'penstock tls init'", code=USAGE) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            told = f"{files.key} is not the key of {files.certificate}"
            raise CommandError(f"{told}; make another authority with 'penstock tls init'", code=USAGE)
        if certificate.not_valid_after_utc <= now:
            ended = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
            told = f"the authority {files.certificate} has ended at {ended} UTC"
            raise CommandError(f"{told}; make another one with 'penstock tls init'", code=USAGE)
        return cls(directory, certificate, key)

    def issue(
        self, name: str, hosts: tuple[str, ...], now: datetime, days: int, *, replace: bool, is_broker: bool = False
    ) -> Made:
        """Sign a server's certificate for these hosts, or a client's if there are none.

        A server's is good for a client too: brokers call one another.

        Args:
            is_broker: whether other brokers are to take who shows it for one of theirs.
        """
        _check_name(name)
        ends = now + timedelta(days=days)
        last = self.certificate.not_valid_after_utc
        if ends > last:
            raise CommandError(
                f"--days {days} is longer than the authority has, which ends at {last:%Y-%m-%d %H:%M} UTC; "
                f"say at most --days {(last - now).days}",
                code=USAGE,
            )
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        built = (
            _build(_subject(name), self.certificate.subject, key.public_key(), now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_data=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([*purposes, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = [_general_name(host) for host in dict.fromkeys(hosts)]
            if is_broker:
                names.append(x509.UniformResourceIdentifier(BROKER_URI))
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _write(self.directory, name, built.sign(self.key, hashes.SHA256()), key, replace=replace)


def make_authority(directory: Path, now: datetime, days: int, *, replace: bool) -> Made:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own: who trusts two authorities of one name may look for a signature's key at the wrong one.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _subject(f"Penstock trial CA {identifier.digest[:4].hex()}")
    built = (
        _build(subject, subject, key.public_key(), now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_data=False), critical=True)
    )
    return _write(directory, CA, built.sign(key, hashes.SHA256()), key, replace=replace)


def check_host(host: str) -> str:
    """A host as a certificate names it. Raises `ValueError`."""
    _general_name(host)
    return host


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host) or len(host) > 253 or host.rpartition(".")[2].isdecimal():
            raise ValueError("neither a host's name nor an address") from None
    return x509.DNSName(host)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == CA:
        raise CommandError(
            f"{name!r} cannot be the name: expected up to 64 letters, digits, spaces and . _ @ + -, a letter or a "
            f"digit first, and not {CA!r}",
            code=USAGE,
        )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _build(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_data: bool) -> x509.KeyUsage:
    """Of a key that signs what its owner sends, or else certificates and lists of revoked ones."""
    return x509.KeyUsage(
        digital_signature=signs_data,
        key_cert_sign=not signs_data,
        crl_sign=not signs_data,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, replace: bool
) -> Made:
    made = _files(directory, name)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    # The certificate comes last: whoever waits for it finds its key there.
    write_new({made.key: private, made.certificate: public}, replace=replace)
    return made


def _files(directory: Path, name: str) -> Made:
    return Made(directory / f"{name}.pem", directory / f"{name}.key")


def now_utc() -> datetime:
    """In whole seconds, which is what a certificate has."""
    return datetime.now(UTC).replace(microsecond=0)
