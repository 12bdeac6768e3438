"""SASL: who a client is, by PLAIN or SCRAM.

The exchange is carried by SaslHandshake and SaslAuthenticate (KIP-43, KIP-152); what SCRAM says is in `scram`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.client.errors import ClientError, Refused, check

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CANNOT: Final = (
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)
_LOGIN: Final = re.compile(r"\s*(?:\w+\.)*(\w+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.S | re.I)
_LOGIN_OPTION: Final = re.compile(
    r"""\s*([\w.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.S
)
_MODULES: Final = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}

Call = Callable[..., "Message"]


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: str
    username: str
    password: str = field(repr=False)

    def authenticate(self, call: Call, server: str) -> None:
        """Prove who we are through a connection's `call`.

        Raises `Refused` with the server's reason, `ClientError` for a server that cannot prove itself.
        """
        answer = call("sasl_handshake", mechanism=self.mechanism)
        who = f"user {self.username!r} at {server}"
        check(answer.error_code, f"{self.mechanism} for {who}", f"the server has {', '.join(answer.mechanisms)}")
        if self.mechanism == "PLAIN":
            self._prove(call, who, f"\0{self.username}\0{self.password}".encode())
        else:
            self._authenticate_by_scram(call, who, server)

    def _authenticate_by_scram(self, call: Call, who: str, server: str) -> None:
        from penstock.client.scram import ScramClient, ScramError

        client = ScramClient(self.mechanism, self.username, self.password)
        try:
            client.check(self._prove(call, who, client.final(self._prove(call, who, client.first()))))
        except ScramError as error:
            raise ClientError(f"{self.mechanism} with the server at {server} failed: {error}") from None

    def _prove(self, call: Call, who: str, said: bytes) -> bytes:
        answer = call("sasl_authenticate", auth_bytes=said)
        if answer.error_code:
            raise Refused(answer.error_code, who, answer.error_message or "")
        found: bytes = answer.auth_bytes
        return found


def parse_sasl(properties: Mapping[str, str]) -> Sasl:
    """Raises `ClientError` naming the property that cannot be."""
    name = "sasl.mechanism" if properties.get("sasl.mechanism") else "sasl.mechanisms"
    said = properties.get(name, "")
    mechanism = said.strip().upper()
    if mechanism not in _MECHANISMS:
        told = f"{name}={said}" if said else "sasl.mechanism is not set, and Kafka's own choice is GSSAPI"
        raise ClientError(f"{told}: only {', '.join(_MECHANISMS)} can be done")
    for each in _CANNOT:
        if properties.get(each):
            raise ClientError(f"{each} cannot be set here; leave it out")
    if login := properties.get("sasl.jaas.config"):
        username, password = _parse_login(login, mechanism)
    else:
        username, password = properties.get("sasl.username"), properties.get("sasl.password")
    if not username or password is None:
        raise ClientError(
            f"{mechanism} needs a user and a password: sasl.jaas.config, or sasl.username and sasl.password"
        )
    if "\0" in username + password:
        raise ClientError(f"user {username!r}: neither a name nor a password may have a zero byte")
    return Sasl(mechanism, username, password)


def _parse_login(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """User and password of a line such as `...PlainLoginModule required username="u" password="p";`.

    Errors do not quote it: it holds a password.
    """
    found = _LOGIN.fullmatch(text)
    if found is None:
        raise ClientError('sasl.jaas.config must read: MODULE required username="..." password="...";')
    module, rest = found.groups()
    if mechanism not in _MODULES.get(module, ()):
        raise ClientError(f"sasl.jaas.config: {module} is not for {mechanism}; {' and '.join(_MODULES)} are known")
    options = {}
    position = 0
    while option := _LOGIN_OPTION.match(rest, position):
        quoted = option[2] if option[2] is not None else option[3]
        options[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        position = option.end()
    if rest[position:].strip():
        raise ClientError(
            "sasl.jaas.config: what follows 'required' must be NAME=\"VALUE\" pairs and one ';' at the end"
        )
    if options.get("tokenauth", "false").lower() == "true":
        raise ClientError("sasl.jaas.config: delegation tokens (tokenauth) cannot be used here")
    return options.get("username"), options.get("password")
