"""Kafka's security properties, in both of its dialects."""

import pickle
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.client.errors import ClientError
from penstock.client.sasl import Sasl
from penstock.client.security import PLAINTEXT, Security, parse_security
from penstock.client.tls import Tls

PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
SCRAM = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "scram-sha-512"}
SSL = {"security.protocol": "SSL"}


def login(rest: str, module: str = "org.apache.kafka.common.security.plain.PlainLoginModule") -> dict[str, str]:
    return PLAIN | {"sasl.jaas.config": f"{module} required {rest}"}


class Identity(NamedTuple):
    certificate: str
    key: str


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """A certificate of nobody and its key, both in PEM."""
    directory = tmp_path_factory.mktemp("identity")
    made = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "certificate.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=nobody"]
    subprocess.run(["openssl", "req", "-x509", "-nodes", *kind, *made], check=True, capture_output=True)
    return Identity(*((directory / name).read_text() for name in ("certificate.pem", "key.pem")))


def test_plaintext_is_what_nobody_asked_for() -> None:
    assert parse_security({}) == PLAINTEXT
    assert parse_security({"security.protocol": "plaintext", "ssl.ca.location": "/nowhere"}) == PLAINTEXT


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (PLAIN | {"sasl.username": "ada", "sasl.password": "x"}, ("PLAIN", "ada", "x")),
        (SCRAM | {"sasl.username": "ada", "sasl.password": ""}, ("SCRAM-SHA-512", "ada", "")),
        (login('username="ada" password="x";'), ("PLAIN", "ada", "x")),
        (login("username='a d a'\n password=x;"), ("PLAIN", "a d a", "x")),
        (login(r'password="a\"b\\c;d=e" username=ada'), ("PLAIN", "ada", r'a"b\c;d=e')),
        (login('serviceName="kafka" username="ada" password="x" ;\n'), ("PLAIN", "ada", "x")),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"}
            | {"sasl.username": "ada", "sasl.password": "x"},
            ("PLAIN", "ada", "x"),
        ),
    ],
)
def test_credentials(properties: dict[str, str], found: tuple[str, str, str]) -> None:
    assert parse_security(properties) == Security(None, Sasl(*found))


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: one of PLAINTEXT, SSL,"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set, and Kafka's own choice is GSSAPI"),
        (PLAIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (PLAIN | {"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism=OAUTHBEARER: only PLAIN"),
        (PLAIN, "PLAIN needs a user and a password"),
        (PLAIN | {"sasl.username": "ada"}, "PLAIN needs a user and a password"),
        (PLAIN | {"sasl.username": "a\0", "sasl.password": "x"}, "zero byte"),
        (PLAIN | {"sasl.login.class": "a.b"}, "sasl.login.class cannot be set"),
        (login('username="ada"'), "PLAIN needs a user and a password"),
        (login('username="ada" password=hush" y'), "must be NAME"),
        (login('username="ada" password="hush"; Other required;'), "must be NAME"),
        (login('username="ada"', "com.sun.security.auth.module.Krb5LoginModule"), "Krb5LoginModule is not for PLAIN"),
        (login('username="a"', "a.ScramLoginModule") | PLAIN, "ScramLoginModule is not for PLAIN"),
        (PLAIN | {"sasl.jaas.config": "KafkaClient { hush };"}, "must read: MODULE required"),
        (SCRAM | {"sasl.jaas.config": "ScramLoginModule required tokenauth=true;"}, "delegation tokens"),
        (SSL | {"ssl.cipher.suites": "X"}, "ssl.cipher.suites cannot be set"),
        (SSL | {"ssl.truststore.location": "/nowhere"}, "ssl.truststore.location=/nowhere: No such file"),
        (SSL | {"ssl.ca.pem": "hush"}, "ssl.ca.pem is not PEM"),
        (SSL | {"ssl.ca.pem": "-----BEGIN CERTIFICATE-----\nhush"}, "the trusted certificates"),
        (SSL | {"ssl.endpoint.identification.algorithm": "ldap"}, "algorithm=ldap: https"),
        (SSL | {"ssl.enabled.protocols": "TLSv1"}, "protocols=TLSv1: only TLSv1.2 and TLSv1.3"),
    ],
)
def test_what_cannot_be(properties: dict[str, str], told: str) -> None:
    with pytest.raises(ClientError) as raised:
        parse_security(properties)
    assert told in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_java_key_store_is_told_apart(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(ClientError, match=r"store\.jks is not PEM.*openssl pkcs12"):
        parse_security(SSL | {"ssl.truststore.location": str(store)})


def test_halves_of_an_identity(identity: Identity) -> None:
    certificate, key = {"ssl.certificate.pem": identity.certificate}, {"ssl.keystore.key": identity.key}
    for some, told in (
        (certificate, "a certificate without its private key"),
        (key, "a private key without its certificate"),
        (certificate | {"ssl.key.pem": "-----BEGIN hush"}, "do not fit each other"),
    ):
        with pytest.raises(ClientError, match=told) as raised:
            parse_security(SSL | some)
        assert "hush" not in str(raised.value)


def test_tls(tmp_path: Path, identity: Identity) -> None:
    (tmp_path / "both.pem").write_text(identity.key + identity.certificate)
    found = parse_security(
        SSL
        | {"ssl.truststore.certificates": identity.certificate, "ssl.keystore.location": str(tmp_path / "both.pem")}
        | {"ssl.endpoint.identification.algorithm": "", "ssl.enabled.protocols": "TLSv1.3"}
    )
    (tmp_path / "both.pem").unlink()
    assert found.tls is not None
    assert found.tls == Tls(
        identity.certificate, identity.key + identity.certificate + "\n", "", check_host=False, versions=("TLSv1.3",)
    )
    context = found.tls.make_context()
    assert (context.check_hostname, context.verify_mode.name) == (False, "CERT_REQUIRED")
    assert context.minimum_version.name == context.maximum_version.name == "TLSv1_3"
    assert len(context.get_ca_certs()) == 1


def test_strict_unless_told_otherwise() -> None:
    strict = parse_security(SSL).tls
    lenient = parse_security(SSL | {"enable.ssl.certificate.verification": "false"}).tls
    assert strict is not None and lenient is not None
    assert (strict.make_context().check_hostname, strict.make_context().verify_mode.name) == (True, "CERT_REQUIRED")
    assert lenient.make_context().verify_mode.name == "CERT_NONE"
    assert strict.make_context().minimum_version.name == "TLSv1_2"


def test_secrets_do_not_show_and_do_travel(identity: Identity) -> None:
    said = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "hush"}
    made = parse_security(
        said | {"ssl.certificate.pem": identity.certificate, "ssl.key.pem": identity.key, "ssl.key.password": "hush"}
    )
    assert made.tls is not None and made.sasl is not None
    assert "hush" not in repr(made) and "PRIVATE" not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301
