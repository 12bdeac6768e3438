"""Machines that trust nobody without a proof: brokers by certificates of one authority, clients by rules.

The clients of the cells come by the plain listener, as nobody; a rule lets nobody do what they need. The rest of the
listeners ask for a password.
"""

import json
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from penstock.security.secret_files import load_key
from tests.chaos.load import wait_until

from .namespaces import address

if TYPE_CHECKING:
    from .machines import Machine

NOBODY: Final = "User:ANONYMOUS"
FORBIDDEN: Final = "forbidden"
"""A topic that nobody may know of."""
ADMIN, PASSWORD = "admin", "correct horse"
CALL_S: Final = 30.0
_PORT: Final = 9093
_BROKER_URI: Final = "penstock:broker"
_LONG_S: Final = 86_400.0
_LOADED_S: Final = 30.0


class Trust:
    """The authority behind the brokers' certificates, and what is in force for clients."""

    def __init__(self, directory: Path, machines: int) -> None:
        self._directory = directory / "trust"
        self._directory.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name.from_rfc4514_string("CN=brokers")
        basic = x509.BasicConstraints(ca=True, path_length=0)
        self._write("ca.pem", self._sign(self._name, self._key, _LONG_S, basic))
        for number in range(1, machines + 1):
            self.issue(number, _LONG_S)
        load_key(str(self._directory / "sealing.key"), random.SystemRandom())
        self._write("admin.password", PASSWORD.encode())

    def _write(self, name: str, text: bytes) -> None:
        """In one step."""
        new = self._directory / f"{name}.new"
        new.write_bytes(text)
        new.chmod(0o600)
        new.rename(self._directory / name)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, good_for_s: float, *more: Any) -> bytes:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(seconds=good_for_s))
        for extension in more:
            made = made.add_extension(extension, critical=False)
        return made.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def certificate(self, number: int) -> Path:
        return self._directory / f"broker-{number}.pem"

    def issue(self, number: int, good_for_s: float = _LONG_S) -> float:
        """A certificate of a broker, in the place of the one from before; the moment it ends."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ip_address(address(number))), x509.UniformResourceIdentifier(_BROKER_URI)]
        ends = time.time() + good_for_s
        name = x509.Name.from_rfc4514_string(f"CN=broker-{number}")
        signed = self._sign(name, key, good_for_s, x509.SubjectAlternativeName(names))
        kept = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._write(f"broker-{number}.pem", signed + kept)  # one file, so never half a pair
        return ends

    def load(self, machine: "Machine") -> None:
        """Have a broker take what was issued, and wait until it has."""
        size = machine.log.stat().st_size
        machine.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: b"certificates loaded" in machine.log.read_bytes()[size:],
            _LOADED_S,
            f"broker {machine.id} loaded its certificates",
        )

    # --- clients

    def secret_address(self, number: int) -> str:
        return f"{address(number)}:{_PORT}"

    def environment(self, number: int) -> dict[str, str]:
        """Of a broker."""
        listener = {"name": "secret", "protocol": "kafka", "address": self.secret_address(number), "auth": ["scram"]}
        return {
            "PENSTOCK_LISTENERS": json.dumps([listener]),
            "PENSTOCK_CLUSTER__TLS_CA": str(self._directory / "ca.pem"),
            "PENSTOCK_CLUSTER__TLS_CERT": str(self.certificate(number)),
            "PENSTOCK_CLUSTER__TLS_KEY": str(self.certificate(number)),
            "PENSTOCK_SECURITY__SEAL_KEY_FILE": str(self._directory / "sealing.key"),
            "PENSTOCK_SECURITY__ADMIN_PASSWORD_FILE": str(self._directory / "admin.password"),
        }

    def admin(self, *numbers: int) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": ",".join(self.secret_address(number) for number in numbers),
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": ADMIN,
                "sasl.password": PASSWORD,
                "log_level": 0,
            }
        )

    def begin(self, *numbers: int) -> None:
        """Nobody may do all that the clients of cells do, and not know of one topic."""
        anything = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.BROKER)
        rules = [rule(NOBODY, kind, "kafka-cluster" if kind is ResourceType.BROKER else "*") for kind in anything]
        rules.append(rule(NOBODY, ResourceType.TOPIC, FORBIDDEN, effect=AclPermissionType.DENY))
        admin = self.admin(*numbers)  # must outlive the answers
        for made in admin.create_acls(rules).values():
            made.result(CALL_S)


def rule(
    principal: str,
    kind: ResourceType,
    name: str,
    operation: AclOperation = AclOperation.ALL,
    effect: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, effect)
