"""Listeners as settings name them: one by one in short forms, or as a list with a name for each."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from penstock.nearest import did_you_mean
from penstock.server.config import (
    ADVERTISED,
    WILDCARDS,
    Address,
    Listener,
    Listeners,
    ListenerTls,
    ShownTls,
    standard_address,
)
from penstock.server.config_layers import ConfigError, read_yaml, show
from penstock.server.doors.table import KINDS

EXPECTED = "a list of {name, protocol, address, advertised}, in the environment and in flags as JSON or YAML"
_KEYS = ("name", "protocol", "address", "advertised", "tls", "auth")
_TLS_KEYS = ("certificate", "key", "password_file", "authority", "revoked", "client_auth", "names", "sni")
_SHOWN_KEYS = ("certificate", "key", "password_file")
_SERVER_NAME = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_CLIENT_AUTH = ("none", "request", "require")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_RESERVED = frozenset({"node"})  # the ready line has it for something else


class WrongListener(ValueError):
    """Something is wrong with one listener of a list; the text says which, and the way out."""


def parse_address(value: object, *, lowest_port: int = 0) -> Address:
    """Read `host:port` or `[v6]:port`.

    Raises:
        ValueError: The text is neither.
    """
    if not isinstance(value, str):
        raise ValueError("not text")
    host, colon, port_text = value.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host) != bracketed or re.search(r"[\s/\[\]@]", host):
        raise ValueError("not host:port")
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not lowest_port <= int(port_text) <= 65535:
        raise ValueError("port out of range")
    return Address(host, int(port_text))


def parse_place(value: object) -> Address:
    """The same, or a port alone, which then is on this machine only."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]+\s*", value):
        value = f"127.0.0.1:{value.strip()}"
    return parse_address(value)


def parse_advertised(value: object) -> Address:
    """The same, of an address that peers can connect to."""
    address = parse_address(value, lowest_port=1)
    if address.host in WILDCARDS:
        raise ValueError("clients cannot connect to a wildcard")
    return address


def parse_listeners(value: object) -> tuple[Listener, ...]:
    """Read a list of maps, or the JSON or YAML of one.

    Raises:
        WrongListener: naming the listener.
        ValueError: it is no such list.
        ConfigError: the text is no YAML.
    """
    items = read_yaml(value, "listeners") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ValueError("not a list of maps")
    found: dict[str, Listener] = {}
    for item in items:
        listener = _parse_listener(item)
        if listener.name in found:
            raise WrongListener(
                f"two listeners are called {listener.name}, at {found[listener.name].address} and {listener.address}; "
                "give one of them another name"
            )
        found[listener.name] = listener
    return tuple(found.values())


def _parse_listener(item: Mapping[object, object]) -> Listener:
    for key in item:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS, f"there is {', '.join(_KEYS)}")
            raise WrongListener(f"listener {show(dict(item))} has no such key as {key!r}; {hint}")
    protocol = item.get("protocol")
    if not isinstance(protocol, str) or protocol not in KINDS:
        raise WrongListener(
            f"listener {show(dict(item))} has protocol {show(protocol)}; this build has {', '.join(KINDS)}"
        )
    name = item.get("name", protocol)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        raise WrongListener(
            f"a listener cannot be called {show(name)}: expected lower-case letters, digits and _, up to 32, a letter "
            f"first, and not {', '.join(sorted(_RESERVED))}"
        )
    if name in KINDS and name != protocol:
        raise WrongListener(f"listener {name} has protocol {protocol}; give it another name, or protocol {name}")
    address = _parse_part(name, item, "address")
    if address is None:
        raise WrongListener(f"listener {name} has no address; give it one, such as {standard_address(protocol)}")
    return Listener(
        name,
        protocol,
        address,
        _parse_part(name, item, "advertised"),
        _parse_auth(name, protocol, item),
        _parse_tls(name, protocol, item),
    )


def _parse_tls(name: str, protocol: str, item: Mapping[object, object]) -> ListenerTls | None:
    given = item.get("tls")
    if given in (None, "none"):
        return None
    if not KINDS[protocol].has_tls:
        raise WrongListener(f"listener {name} has tls: listeners of protocol {protocol} have none yet; leave it out")
    if not isinstance(given, Mapping):
        raise WrongListener(f"listener {name} has tls = {show(given)}; expected a map of {', '.join(_TLS_KEYS)}")
    sni = _parse_sni(name, given.get("sni", {}))
    texts = _texts_of(f"tls of listener {name}", {key: each for key, each in given.items() if key != "sni"}, _TLS_KEYS)
    client_auth = given.get("client_auth", "none")
    if client_auth not in _CLIENT_AUTH:
        raise WrongListener(
            f"tls of listener {name} has client_auth = {show(client_auth)}; expected one of {', '.join(_CLIENT_AUTH)}"
        )
    paths = {key: Path(value) for key, value in texts.items() if key not in ("client_auth", "names")}
    return ListenerTls(**paths, client_auth=client_auth, names=given.get("names", "DEFAULT"), sni=sni)


def _parse_sni(name: str, given: object) -> Mapping[str, ShownTls]:
    """What is shown to who asks for a name."""
    if not isinstance(given, Mapping):
        raise WrongListener(
            f"tls of listener {name} has sni = {show(given)}; expected a map from names of servers to maps of "
            f"{', '.join(_SHOWN_KEYS)}"
        )
    found: dict[str, ShownTls] = {}
    for server, shown in given.items():
        if not isinstance(server, str) or not _SERVER_NAME.fullmatch(server):
            raise WrongListener(
                f"sni of listener {name} has {show(server)}; expected a server's name, such as kafka.example.com or "
                "*.example.com"
            )
        what = f"sni of listener {name} for {server}"
        if server.lower() in found:
            raise WrongListener(f"{what} is given twice: names are the same whatever their case")
        if not isinstance(shown, Mapping):
            raise WrongListener(f"{what} is {show(shown)}; expected a map of {', '.join(_SHOWN_KEYS)}")
        paths = {key: Path(value) for key, value in _texts_of(what, shown, _SHOWN_KEYS).items()}
        found[server.lower()] = ShownTls(**paths)
    return MappingProxyType(found)


def _texts_of(what: str, given: Mapping[object, object], known: tuple[str, ...]) -> dict[str, str]:
    """What shows a certificate, and what goes with it. Raises `WrongListener`, saying of what."""
    texts: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(key, str) or key not in known:
            hint = did_you_mean(str(key), known, f"there is {', '.join(known)}")
            raise WrongListener(f"{what} has no such key as {key!r}; {hint}")
        if not isinstance(value, str) or not value:
            raise WrongListener(f"{what} has {key} = {show(value)}; expected text")
        texts[key] = value
    for key in ("certificate", "key"):
        if key not in texts:
            raise WrongListener(f"{what} has no {key}; give it the path of a PEM file")
    return texts


def _parse_auth(name: str, protocol: str, item: Mapping[object, object]) -> tuple[str, ...]:
    given = item.get("auth")
    words = given if isinstance(given, list) else [given]
    if words == [None] or words == ["none"]:
        return ()
    known = KINDS[protocol].logins
    for word in words:
        if word not in known:
            raise WrongListener(
                f"listener {name} has auth = {show(given)}; listeners of protocol {protocol} have "
                f"{', '.join(known) or 'none yet'}"
            )
    tls = item.get("tls")
    if "certificate" in words and not (isinstance(tls, Mapping) and tls.get("client_auth") in ("request", "require")):
        raise WrongListener(
            f"listener {name} has auth certificate, but asks nobody for one; give it tls with client_auth and authority"
        )
    return tuple(dict.fromkeys(words))


def _parse_part(name: str, item: Mapping[object, object], key: str) -> Address | None:
    value = item.get(key)
    if value is None:
        return None
    try:
        return parse_address(value) if key == "address" else parse_advertised(value)
    except ValueError:
        what = "port 0: any free one" if key == "address" else "no wildcard, port 1 to 65535"
        raise WrongListener(f"listener {name} has {key} = {show(value)}; expected host:port ({what})") from None


def build_listeners(
    listed: tuple[Listener, ...], short: Mapping[str, Address], sources: Mapping[str, str]
) -> Listeners:
    """Both forms together.

    Args:
        short: addresses by short form: `kafka`, `advertised_kafka`, ...
        sources: where each setting was given, by its whole key.

    Raises:
        ConfigError: A listener is given in both.
    """
    own = [name for name in KINDS if name in Listeners.__dataclass_fields__]
    fields = {form: address for form, address in short.items() if form.removeprefix(ADVERTISED) in own}
    more = []
    for listener in listed:
        for form in (listener.name, ADVERTISED + listener.name):
            if form in short:
                raise ConfigError(
                    f"listener {listener.name} is given twice: in the list listeners (from {sources['listeners']}) "
                    f"and as listeners.{form} (from {sources[f'listeners.{form}']}); keep one of the two"
                )
        if listener.name not in own:
            more.append(listener)
            continue
        fields[listener.name] = listener.address
        if listener.advertised is not None:
            fields[ADVERTISED + listener.name] = listener.advertised
    for name in KINDS:
        if name not in own and (name in short or ADVERTISED + name in short):
            address = short.get(name, standard_address(name))
            more.append(Listener(name, name, address, short.get(ADVERTISED + name)))
    auth = {listener.name: listener.auth for listener in listed if listener.auth and listener.name in own}
    tls = {listener.name: listener.tls for listener in listed if listener.tls is not None and listener.name in own}
    return Listeners(**fields, more=tuple(more), is_named=bool(sources), auth=auth, tls=tls)
