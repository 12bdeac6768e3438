"""How to talk to brokers that want TLS or credentials, as Kafka's properties say it.

Both ways to write them are known: the Java client's (`ssl.truststore.location`, `sasl.jaas.config`) and librdkafka's
(`ssl.ca.location`, `sasl.username`). Files are read here, once, so that the result can go to other machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.sasl import Sasl, parse_sasl
from penstock.client.tls import Tls, parse_tls

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Security:
    """Neither is PLAINTEXT, both are SASL_SSL. May be pickled; secrets do not show in its `repr`."""

    tls: Tls | None = None
    sasl: Sasl | None = None


PLAINTEXT: Final = Security()


def parse_security(properties: Mapping[str, str]) -> Security:
    """What a client's properties ask for; those about anything else are ignored, as Kafka does.

    Raises `ClientError` naming the property for what cannot be done: key stores that are not PEM, Kerberos, OAuth.
    """
    said = properties.get("security.protocol", "PLAINTEXT")
    protocol = said.strip().upper()
    if protocol not in _PROTOCOLS:
        raise ClientError(f"security.protocol={said}: one of {', '.join(_PROTOCOLS)}")
    return Security(
        parse_tls(properties) if protocol.endswith("SSL") else None,
        parse_sasl(properties) if protocol.startswith("SASL") else None,
    )
