"""A broker that speaks TLS at a listener for passwords, one for certificates, and two of HTTP; and who may come."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from penstock.net.tls import TlsFiles
from tests.peers import penstock
from tests.unit.net.certificates import Authority
from tests.unit.net.test_certificates import revoke

ADMIN = "adm1n"
TOPIC = "ledger"
WAIT_S = 20.0
_SETTINGS = """\
security: {{admin_password_file: {password}}}
groups: {{initial_rebalance_delay_ms: 0}}
listeners:
- {{name: secret, protocol: kafka, address: "127.0.0.1:0", auth: [scram, plain], tls: {{{shown}}}}}
- {{name: mutual, protocol: kafka, address: "127.0.0.1:0", auth: certificate, tls: {{{shown}, {asked}, {names}}}}}
- {{name: web, protocol: http, address: "127.0.0.1:0", auth: [basic, key], tls: {{{shown}}}}}
- {{name: strict, protocol: http, address: "127.0.0.1:0", auth: [basic], tls: {{{shown}, {asked}}}}}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """How somebody wants to come in: by a password, if a mechanism is named, or by a certificate, or with nothing."""

    address: str
    authority: str
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    files: TlsFiles | None = None

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.mechanism else "SSL"

    def librdkafka(self) -> dict[str, str | int | float | bool]:
        said: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.address,
            "security.protocol": self.protocol,
            "ssl.ca.location": self.authority,
        }
        if self.mechanism:
            said |= {"sasl.mechanisms": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        if self.files is not None:
            said |= {"ssl.certificate.location": self.files.certificate, "ssl.key.location": self.files.key}
        return said

    def properties(self) -> str:
        """As Kafka's own programs read them."""
        said = {
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "default.api.timeout.ms": "10000",
            "request.timeout.ms": "8000",
        }
        if self.mechanism:
            module = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            login = f"org.apache.kafka.common.security.{module}LoginModule required"
            jaas = f'{login} username="{self.user}" password="{self.password}";'
            said |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": jaas}
        if self.files is not None:
            both = Path(self.files.certificate).with_suffix(".both.pem")
            if not both.exists():
                both.write_text(pkcs8(self.files.key) + Path(self.files.certificate).read_text())
            said |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
        return "".join(f"{name}={value}\n" for name, value in said.items())


def pkcs8(path: str) -> str:
    """The only form of a key that Java reads; openssl writes it by itself."""
    text = Path(path).read_text()
    assert text.startswith("-----BEGIN PRIVATE KEY-----")
    return text


class House:
    """The broker, and the authority behind its certificate and those of its clients."""

    def __init__(self, directory: Path, *, more: str = "") -> None:
        self.authority = Authority.make(directory / "ours")
        server = self.authority.sign("server")
        self.lost = self.authority.sign("lost")
        revoked = revoke(self.authority, directory / "revoked.pem", self.lost)
        asked = f"authority: {server.authority}, client_auth: require, revoked: {revoked}"
        password = directory / "admin.password"
        password.write_text(ADMIN)
        password.chmod(0o600)
        settings = _SETTINGS.format(
            password=password,
            shown=f"certificate: {server.certificate}, key: {server.key}",
            asked=asked,
            names='names: "RULE:CN=(.*)/$1/L"',
        )
        self.broker = penstock.start(directory / "broker", settings=settings + more)
        found = re.findall(r"\b(\w+)=(\S+)", (directory / "broker" / "penstock.stdout").read_text())
        self.addresses = dict(found)

    @property
    def log(self) -> str:
        return self.broker.log.read_text()

    def by_password(self, mechanism: str, user: str, password: str) -> Entry:
        return Entry(self.addresses["secret"], self.authority.certificate, mechanism, user, password)

    def by_certificate(self, files: TlsFiles | None) -> Entry:
        return Entry(self.addresses["mutual"], self.authority.certificate, files=files)

    def furnish(self, users: Mapping[str, str]) -> None:
        """A topic that everybody may use, and users by their passwords."""
        admin = AdminClient(self.by_password("SCRAM-SHA-256", "admin", ADMIN).librdkafka())
        for made in admin.create_topics([NewTopic(TOPIC, 1)]).values():
            made.result(WAIT_S)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
                for name, password in users.items()
            ]
            for altered in admin.alter_user_scram_credentials(wanted).values():
                altered.result(WAIT_S)
        everything = (AclOperation.ALL, AclPermissionType.ALLOW)
        rules = [
            AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:*", "*", *everything)
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        for created in admin.create_acls(rules).values():
            created.result(WAIT_S)
