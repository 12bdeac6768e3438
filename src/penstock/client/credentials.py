"""Where a client's secrets come from: a file that a property names, or the environment; and what no context may hold.

`sasl.password.file` is ours; neither Java's clients nor librdkafka know it.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.client.errors import ClientError

PASSWORD: Final = "PENSTOCK_PASSWORD"  # noqa: S105 - a variable's name
API_KEY: Final = "PENSTOCK_API_KEY"
PASSWORD_FILE: Final = "sasl.password.file"  # noqa: S105 - a property's name
USERNAME: Final = "sasl.username"
JAAS: Final = "sasl.jaas.config"
PROTOCOL: Final = "security.protocol"
PASSWORDS: Final = frozenset({"sasl.password", PASSWORD_FILE, JAAS})
SECRETS: Final = frozenset(
    {
        *("sasl.password", JAAS, "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config"),
        *("ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "ssl.keystore.key"),
    }
)
"""Properties whose values are secrets themselves."""

_FILES: Final = (
    *(PASSWORD_FILE, "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    *("ssl.truststore.location", "ssl.keystore.location"),
)
_PLAIN: Final = "PLAIN"
_KEY: Final = re.compile(r"(pk_[0-9a-f]+)_[A-Za-z0-9_-]+")
_PROBE: Final = "probe"
"""What librdkafka takes in the place of a file, to look for the system's own."""


def anchored(properties: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The same with files as paths from the root, for who uses them elsewhere than where they were named."""
    paths = {name: str(properties[name]) for name in _FILES if name in properties}
    return dict(properties) | {
        name: os.path.abspath(directory / path) for name, path in paths.items() if path and path != _PROBE
    }


def overlay(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Both, with the upper one's values; and none of the lower one's credentials where the upper one has its own."""
    own = {USERNAME, *PASSWORDS} & set(upper)
    dropped = PASSWORDS if own == {USERNAME} else PASSWORDS - own if own else frozenset()
    if JAAS in own:
        dropped = dropped | {USERNAME}
    return {name: value for name, value in lower.items() if name not in dropped} | dict(upper)


def with_password(properties: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The same with the password in its place, where SASL needs one and the properties do not have it.

    Raises `ClientError` for a file that cannot be used. A password that is nowhere is for `parse_sasl` to miss.
    """
    made = with_api_key(properties, env)
    path = made.pop(PASSWORD_FILE, None)
    if not made.get(PROTOCOL, "").strip().upper().startswith("SASL"):
        return made
    if JAAS in made or "sasl.password" in made:
        return made
    if path is not None:
        made["sasl.password"] = read_password_file(path)
    elif env.get(PASSWORD):
        made["sasl.password"] = env[PASSWORD]
    return made


def with_api_key(properties: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The same with an API key as the login, where SASL needs one and nothing else is said of it.

    Raises `ClientError`, which does not say the key.
    """
    made, key = dict(properties), env.get(API_KEY)
    mechanism = made.get("sasl.mechanism") or made.get("sasl.mechanisms") or _PLAIN
    needs_login = made.get(PROTOCOL, "").strip().upper().startswith("SASL")
    if not key or not needs_login or mechanism.strip().upper() != _PLAIN or {USERNAME, *PASSWORDS} & set(made):
        return made
    found = _KEY.fullmatch(key)
    if found is None:
        raise ClientError(f"${API_KEY} holds no API key: 'penstock apikey create' makes one, pk_..._...")
    return made | {"sasl.mechanism": _PLAIN, USERNAME: found[1], "sasl.password": key}


def read_password_file(path: str) -> str:
    """A password in one line, in a file that is its owner's alone. Raises `ClientError`."""
    from penstock.errors import StartupError
    from penstock.security.secret_files import read_secret_file

    try:
        return read_secret_file(path).reveal().decode()
    except StartupError as error:
        raise ClientError(str(error)) from None
    except UnicodeDecodeError:
        raise ClientError(f"{path}: a password is text in UTF-8") from None


def refuse_secrets_of_context(name: str, properties: Mapping[str, str], path: Path) -> None:
    """Raises `ClientError`, which does not say the secret."""
    for key in sorted(SECRETS & set(properties)):
        way_out = "give it by a file of client properties (--command-config FILE)"
        if key in PASSWORDS:
            way_out = f"name a file with {PASSWORD_FILE}, or set ${PASSWORD}"
        raise ClientError(f"{path}: context {name!r} holds a secret, {key}; take it out of there, and {way_out}")
