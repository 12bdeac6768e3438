"""Who a command says it is: a client's properties about security, from the command line, a file, a context.

A password is never a word of the command line, which everybody on the machine can read, nor in a context, which is
copied from machine to machine. It is in a file that `sasl.password.file` names, in $PENSTOCK_PASSWORD, or in a
properties file. A layer that names a user or a password replaces both of the layers below, or one user's password would
be tried for another.

An API key in $PENSTOCK_API_KEY is the login where no user and no password is named.

What is said in the Java client's words (`sasl.jaas.config`, PEM stores) becomes librdkafka's.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.failure import USAGE, CommandError
from penstock.client import credentials
from penstock.client.credentials import API_KEY, JAAS, PASSWORD, PASSWORD_FILE, PASSWORDS, PROTOCOL, SECRETS, USERNAME

if TYPE_CHECKING:
    from penstock.client.errors import ClientError
    from penstock.client.security import Security

ANONYMOUS: Final = "User:ANONYMOUS"
_HOW: Final = f"-X {PASSWORD_FILE}=FILE or ${PASSWORD}"
_KEY_HOW: Final = f"; an API key in ${API_KEY} is taken where no user is named"
_OURS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OF_A_FILE: Final = ("security.protocol", "sasl.", "ssl.", "enable.ssl.", "bootstrap.servers", "client.id")
_PEM_NAMES: Final = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.truststore.certificates": ("ssl.ca.pem",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
    "ssl.keystore.key": ("ssl.key.pem",),
}


def refuse_secrets(properties: Mapping[str, str]) -> None:
    """Of words of the command line. Raises `CommandError`, which does not say the secret either."""
    for name in sorted(SECRETS & set(properties)):
        way_out = _HOW if name in PASSWORDS else "--command-config FILE"
        raise CommandError(
            f"-X {name}=... shows a secret to everybody who can list this machine's processes; it comes by {way_out}",
            code=USAGE,
        )


def tell_api_key(env: Mapping[str, str]) -> str:
    """What is to be said of an API key where a login is missing; nothing if there is none."""
    return f"; ${API_KEY} is taken where -X {PROTOCOL}=SASL_SSL is said" if env.get(API_KEY) else ""


def read_properties_file(path: str) -> dict[str, str]:
    """What a file of client properties, as Kafka's tools take it, says about servers and security.

    Raises `CommandError`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"--command-config {path}: cannot be read: {reason}", code=USAGE) from None
    found = dict(_parse_lines(text, path))
    return {name: value for name, value in found.items() if name.startswith(_OF_A_FILE)}


def _parse_lines(text: str, path: str) -> Iterator[tuple[str, str]]:
    """The format of Java's properties. Errors do not quote a line: it may hold a password."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*", r"\1", text.replace("\r\n", "\n"))
    for number, line in enumerate(joined.split("\n"), 1):
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        found = re.match(r"((?:[^\s\\=:]|\\.)+)[ \t\f]*[=: \t\f][ \t\f]*(.*)", line, re.DOTALL)
        if found is None:
            raise CommandError(f"--command-config {path}: property {number} is no NAME=VALUE", code=USAGE)
        yield _unescape(found[1]), _unescape(found[2])


def _unescape(text: str) -> str:
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replace(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else letters.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text, flags=re.DOTALL)


def complete(properties: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The properties as librdkafka takes them, with the password. Raises `CommandError` naming what is missing."""
    made = _with_key(_with_pem(properties), env)
    protocol = made.get(PROTOCOL, "PLAINTEXT").strip().upper()
    mechanism = made.get("sasl.mechanism") or made.get("sasl.mechanisms") or ""
    if not protocol.startswith("SASL"):
        if said := next((name for name in (USERNAME, JAAS, PASSWORD_FILE, "sasl.mechanism") if name in made), None):
            raise CommandError(
                f"{said} is set, and {PROTOCOL} is {protocol}, which asks nobody who they are; set it to SASL_SSL, or "
                "to SASL_PLAINTEXT where the network may be trusted",
                code=USAGE,
            )
        return made
    if mechanism.strip().upper() not in _OURS:
        made.pop(PASSWORD_FILE, None)
        return made  # librdkafka's own, or its error
    if JAAS in made:
        _take_jaas_apart(made)
    path = made.pop(PASSWORD_FILE, None)
    if "sasl.password" not in made:
        made["sasl.password"] = _find_password(path, env, made.get(USERNAME))
    if not made.get(USERNAME):
        raise CommandError(f"{mechanism} needs to know who you are: -X {USERNAME}=NAME", code=USAGE)
    return made


def _with_key(properties: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Raises `CommandError`."""
    from penstock.client.errors import ClientError

    try:
        return credentials.with_api_key(properties, env)
    except ClientError as error:
        raise CommandError(str(error), code=USAGE) from None


def _with_pem(properties: Mapping[str, str]) -> dict[str, str]:
    """The Java client's words for PEM files in librdkafka's."""
    made = dict(properties)
    for kind in ("truststore", "keystore"):
        if made.get(f"ssl.{kind}.type", "").upper() == "PEM":
            del made[f"ssl.{kind}.type"]
            for name in [name for name in _PEM_NAMES if name.startswith(f"ssl.{kind}.") and name in made]:
                value = made.pop(name)
                made |= dict.fromkeys(_PEM_NAMES[name], value)
    if made.get("ssl.endpoint.identification.algorithm") == "":
        made["ssl.endpoint.identification.algorithm"] = "none"
    return made


def _take_jaas_apart(made: dict[str, str]) -> None:
    from penstock.client.errors import ClientError
    from penstock.client.sasl import parse_sasl

    try:
        found = parse_sasl(made)
    except ClientError as error:
        raise CommandError(str(error), code=USAGE) from None
    del made[JAAS]
    made[USERNAME], made["sasl.password"] = found.username, found.password


def _find_password(path: str | None, env: Mapping[str, str], user: str | None) -> str:
    if path is not None:
        return read_password_file(path)
    if password := env.get(PASSWORD):
        return password
    raise CommandError(
        f"user {user!r} has no password here: it comes by {_HOW}{_KEY_HOW if env.get(API_KEY) else ''}", code=USAGE
    )


def read_password_file(path: str) -> str:
    """As `credentials` does. Raises `CommandError`."""
    from penstock.client.errors import ClientError

    try:
        return credentials.read_password_file(path)
    except ClientError as error:
        raise CommandError(str(error), code=USAGE) from None


def principal(properties: Mapping[str, str]) -> str:
    """As whom a server takes us, as far as can be said from here."""
    return f"User:{properties[USERNAME]}" if properties.get(USERNAME) else ANONYMOUS


def security_of(properties: Mapping[str, str]) -> "Security | None":
    """What our own client needs to log in; None where only librdkafka can (Kerberos, tokens, key stores)."""
    from penstock.client.errors import ClientError
    from penstock.client.security import parse_security

    try:
        return parse_security(properties)
    except ClientError:
        return None


def explain(error: "ClientError", properties: Mapping[str, str]) -> str:
    """Why a login failed, in one line with the way out."""
    from penstock.client.errors import Refused

    user, mechanism = properties.get(USERNAME), properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if not isinstance(error, Refused):
        return str(error)
    if error.name == "SASL_AUTHENTICATION_FAILED":
        place = error.what.rpartition(" at ")[2]
        return (
            f"the server at {place} does not let user {user!r} in by {mechanism}: a wrong password, no such user, or "
            "too soon after another failure; who runs the server can set the password with 'penstock user passwd'"
        )
    if error.name == "ILLEGAL_SASL_STATE":
        place = error.what.rpartition(" at ")[2]
        return f"the listener at {place} takes no login; leave {PROTOCOL} and sasl.* out, or name one that has auth"
    if error.name == "UNSUPPORTED_SASL_MECHANISM":
        return f"{error}; -X sasl.mechanism=NAME chooses another"
    return str(error)
