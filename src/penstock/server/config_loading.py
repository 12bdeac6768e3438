"""A broker's settings read and checked: defaults, then a YAML file, then the environment, then flags; the last wins.

Every layer is first flattened to dotted keys, each value keeping the place it came from, so an error can always name
the key, the value and the source. YAML is imported only when there is YAML to read.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from penstock.nearest import did_you_mean
from penstock.server.config import (
    EMBEDDED_STORE,
    ENV_SECRET,
    WILDCARDS,
    Address,
    Cluster,
    Config,
    Defaults,
    Groups,
    Limits,
    Listener,
    Logging,
    Node,
    Security,
    Storage,
    Topics,
    Transactions,
)
from penstock.server.config_layers import ConfigError, Given, read_file, read_map, show
from penstock.server.config_listeners import WrongListener, build_listeners
from penstock.server.config_table import (
    LISTENERS_KEY,
    PARTITIONS_KEY,
    SETTINGS,
    SHORT_PREFIX,
    TOPIC_PREFIX,
    Setting,
)
from penstock.server.doors.table import KINDS

ENV_PREFIX = "PENSTOCK_"
ENV_CONFIG_FILE = "PENSTOCK_CONFIG"
DEFAULT_SOURCE = "default"
_SAID_AS_THEY_ARE = frozenset({"plain", "basic", "key"})
"""Ways to log in by which a secret itself goes over the wire."""

# The client side of the command reads these; a broker started from the same shell must not stumble over them.
_CLIENT_ENV = frozenset(
    {"PENSTOCK_SERVER", "PENSTOCK_CONTEXT", "PENSTOCK_PASSWORD", "PENSTOCK_API_KEY", ENV_CONFIG_FILE, ENV_SECRET}
)
# Kubernetes adds such names to every container when a Service is called penstock or penstock-something.
_SERVICE_LINK_ENV = re.compile(r"^PENSTOCK_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)$")
_TOPIC_KEY = re.compile(r"^[a-z][a-z0-9]*([.-][a-z0-9]+)*$")
_BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}
_GROUPS = frozenset(key.rpartition(".")[0] for key in _BY_KEY if "." in key) | {"defaults"}
_ALL_NAMES = (*_BY_KEY, *sorted(_GROUPS))


def load(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> Config:
    """Read and check all settings.

    Args:
        file: A YAML file; `PENSTOCK_CONFIG` names one when this is not given.
        env: The environment; the process's own when not given.
        flags: Dotted keys given on the command line, each with the flag as its source.

    Raises:
        ConfigError: One setting is wrong, or a listener reaches beyond loopback without `insecure`.
    """
    given, ignored = _gather(file, env, flags)
    return _check_exposure(_build(given, ignored))


class Effective(NamedTuple):
    """One setting as a broker would have it, and where that was said."""

    key: str
    value: object
    source: str
    """`default`, or the file, environment variable or flag it came from."""
    purpose: str

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_SOURCE


def explain(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> list[Effective]:
    """Every setting that `load` would return, topic defaults that were given included.

    Raises:
        ConfigError: as `load` does.
    """
    given, ignored = _gather(file, env, flags)
    config = _check_exposure(_build(given, ignored))
    found = []
    listed = _build({LISTENERS_KEY: given[LISTENERS_KEY]}, ()) if LISTENERS_KEY in given else Config()
    for setting in SETTINGS:
        source = given[setting.key].source if setting.key in given else DEFAULT_SOURCE
        if setting.key.startswith(SHORT_PREFIX) and _value_of(listed, setting.key) != _value_of(Config(), setting.key):
            source = given[LISTENERS_KEY].source
        found.append(Effective(setting.key, _value_of(config, setting.key), source, setting.purpose))
    for name, value in sorted(config.defaults.topic.items()):
        key = TOPIC_PREFIX + name
        found.append(Effective(key, value, given[key].source, f"default of the topic setting {name}"))
    return found


def find_problems(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> tuple[list[ConfigError], dict[str, Given]]:
    """All that is wrong, where `load` stops at the first; and the settings given that are right by themselves."""
    problems: list[ConfigError] = []
    try:
        given, ignored = _gather(file, env, flags, problems)
    except ConfigError as error:
        return [*problems, error], {}
    sound: dict[str, Given] = {}
    for key, each in given.items():
        try:
            _build({key: each}, ())
        except ConfigError as error:
            problems.append(error)
        else:
            sound[key] = each
    try:
        _check_exposure(_build(sound, ignored))
    except ConfigError as error:
        problems.append(error)
    return problems, sound


def _gather(
    file: Path | str | None,
    env: Mapping[str, str] | None,
    flags: Mapping[str, Given] | None,
    problems: list[ConfigError] | None = None,
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """All layers, flattened, the last one winning, and the environment variables that are no setting."""
    env = os.environ if env is None else env
    file = file or env.get(ENV_CONFIG_FILE) or None
    given: dict[str, Given] = {}
    if file is not None:
        given.update(read_file(Path(file), env, problems))
    from_env, ignored = _read_env(env)
    given.update(from_env)
    given.update(flags or {})
    return given, ignored


def _value_of(config: Config, key: str) -> object:
    if key == PARTITIONS_KEY:
        return config.defaults.partitions
    if key == LISTENERS_KEY:
        return ", ".join(map(str, config.listeners.more)) or None
    if key.startswith(SHORT_PREFIX):
        return config.listeners.short_form(key.removeprefix(SHORT_PREFIX))
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _build(given: Mapping[str, Given], ignored_env: tuple[str, ...]) -> Config:
    values: dict[str, object] = {}
    topic: dict[str, str] = {}
    for key, (value, source) in given.items():
        setting = _BY_KEY.get(key)
        if setting is not None:
            values[key] = _parse(setting, value, source)
        elif key.startswith(TOPIC_PREFIX):
            topic[key.removeprefix(TOPIC_PREFIX)] = _topic_value(key, value, source)
        else:
            raise _unknown(key, value, source)

    def group(prefix: str) -> dict[str, object]:
        return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    top = {key: value for key, value in values.items() if "." not in key and key != LISTENERS_KEY}
    partitions = cast(int, values.get(PARTITIONS_KEY, Defaults.__dataclass_fields__["partitions"].default))
    return Config(
        **top,  # type: ignore[arg-type]  # each value came out of its own parser
        node=Node(**group("node.")),  # type: ignore[arg-type]
        listeners=build_listeners(
            cast(tuple[Listener, ...], values.get(LISTENERS_KEY, ())),
            cast(Mapping[str, Address], group(SHORT_PREFIX)),
            {key: given[key].source for key in values if key == LISTENERS_KEY or key.startswith(SHORT_PREFIX)},
        ),
        topics=Topics(**group("topics.")),  # type: ignore[arg-type]
        defaults=Defaults(topic=MappingProxyType(topic), partitions=partitions),
        limits=Limits(**group("limits.")),  # type: ignore[arg-type]
        storage=Storage(**group("storage.")),  # type: ignore[arg-type]
        groups=Groups(**group("groups.")),  # type: ignore[arg-type]
        transactions=Transactions(**group("transactions.")),  # type: ignore[arg-type]
        cluster=Cluster(**group("cluster.")),  # type: ignore[arg-type]
        security=Security(**group("security.")),  # type: ignore[arg-type]
        logging=Logging(**group("logging.")),  # type: ignore[arg-type]
        ignored_env=ignored_env,
    )


def _parse(setting: Setting, value: object, source: str) -> object:
    try:
        return setting.parse(value)
    except WrongListener as error:
        raise ConfigError(f"{setting.key} (from {source}): {error}") from None
    except ValueError:
        raise ConfigError(
            f"{setting.key} = {show(value)} (from {source}) is not allowed: expected {setting.allowed}"
        ) from None


def topic_value(key: str, given: Given) -> str:
    """A topic default as the text the engine gets. Raises `ConfigError`."""
    return _topic_value(key, given.value, given.source)


def _topic_value(key: str, value: object, source: str) -> str:
    """A topic default as the text a Kafka client would send for it; the engine checks key and value."""
    name = key.removeprefix(TOPIC_PREFIX)
    if not _TOPIC_KEY.match(name):
        raise ConfigError(
            f"{key} = {show(value)} (from {source}): {name!r} is no topic setting's name; "
            "expected lower-case words joined by dots, such as retention.ms"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and value and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key} = {show(value)} (from {source}) is not allowed: expected a text, number, true or false")


def _unknown(key: str, value: object, source: str) -> ConfigError:
    if key in _GROUPS:
        members = ", ".join(name for name in _BY_KEY if name.startswith(key + "."))
        return ConfigError(f"{key} = {show(value)} (from {source}) is a group, not a setting; it holds {members}")
    return ConfigError(f"{key} = {show(value)} (from {source}): no such setting; {_hint(key)}")


def _hint(key: str) -> str:
    """What was probably meant. A mistyped first word is mended alone, whatever follows it."""
    head, _, rest = key.partition(".")
    for known in difflib.get_close_matches(head, {name.partition(".")[0] for name in _ALL_NAMES}, n=1):
        mended = f"{known}.{rest}"
        if mended in _BY_KEY or (mended.startswith(TOPIC_PREFIX) and head != known):
            return f"did you mean {mended}?"
    group = key.rpartition(".")[0]
    members = [name for name in _BY_KEY if group in _GROUPS and name.startswith(group + ".")]
    every = f"there is {', '.join(members)}" if members else "'penstock config show' lists those there are"
    return did_you_mean(key, _BY_KEY, every)


def _check_exposure(config: Config) -> Config:
    """A door without a lock is for this machine only, unless somebody said otherwise."""
    listed = config.listeners.listed(in_cluster=bool(config.cluster.store))
    for listener in () if config.insecure else config.exposed:
        raise ConfigError(_tell_exposed(listener))
    for listener in listed:
        said = [word for word in listener.auth if word in _SAID_AS_THEY_ARE]
        if said and listener.tls is None and not listener.address.is_loopback:
            raise ConfigError(
                f"{listener.key} = {listener.address} has auth {said[0]}, by which passwords could be read on the way: "
                f"{'use scram there, give it tls' if said[0] == 'plain' else 'give it tls'}, "
                "or bind it to loopback"
            )
        if KINDS[listener.protocol].is_told and listener.address.host in WILDCARDS and listener.advertised is None:
            raise ConfigError(_tell_wildcard(listener))
    return _check_cluster(config)


def _tell_exposed(listener: Listener) -> str:
    address = listener.address
    loopback = f"--{listener.name} 127.0.0.1:{address.port}"
    if listener.name not in KINDS:
        loopback = f"its address: 127.0.0.1:{address.port}"
    lacks = "TLS: what is said there can be read and changed on the way" if listener.auth else "authentication"
    return (
        f"{listener.key} = {address} reaches beyond this machine and has no {lacks}. Either "
        f"bind it to loopback ({loopback}), or accept that whoever connects "
        f"reads and writes everything (--insecure, {ENV_PREFIX}INSECURE=true or insecure: true)"
    )


def _tell_wildcard(listener: Listener) -> str:
    setting = f"listeners.advertised_{listener.name}" if listener.name in KINDS else "its key advertised"
    flag = " (flag --advertise HOST:PORT)" if listener.name == "kafka" else ""
    return (
        f"{listener.key} = {listener.address} is a wildcard, which {KINDS[listener.protocol].peers} cannot connect to: "
        f"say which address they should use with {setting}{flag}"
    )


def _check_cluster(config: Config) -> Config:
    """What belongs together."""
    cluster = config.cluster
    if (cluster.store == EMBEDDED_STORE) != bool(cluster.members):
        raise ConfigError(
            f"cluster.store = {cluster.store or 'none'} and cluster.members = {','.join(cluster.members) or 'none'} do "
            f"not fit: cluster.members is for cluster.store = {EMBEDDED_STORE}, and needed there"
        )
    for names in (("tls_ca", "tls_cert", "tls_key"), ("etcd_cert", "etcd_key")):
        given = [name for name in names if getattr(cluster, name) is not None]
        if given and len(given) < len(names):
            raise ConfigError(f"cluster.{given[0]} needs {' and '.join(f'cluster.{name}' for name in names)} too")
    if cluster.tls_crl is not None and cluster.tls_ca is None:
        raise ConfigError("cluster.tls_crl needs cluster.tls_ca too, which signs the list")
    if not config.insecure and (far := config.exposed_store) is not None:
        way_out = "give them TLS (cluster.etcd_ca, etcd_cert, etcd_key)"
        if cluster.store != EMBEDDED_STORE:
            way_out = "use etcds:// with cluster.etcd_ca"
        raise ConfigError(
            f"cluster.store = {cluster.store} reaches {far} in plain: what is kept there, keys of passwords and who "
            f"may do what among it, could be read and changed on the way. Either {way_out}, or accept that "
            f"(--insecure, {ENV_PREFIX}INSECURE=true or insecure: true)"
        )
    return config


def _read_env(env: Mapping[str, str]) -> tuple[dict[str, Given], tuple[str, ...]]:
    given: dict[str, Given] = {}
    maps: dict[str, Given] = {}
    ignored: list[str] = []
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in _CLIENT_ENV or _SERVICE_LINK_ENV.match(name):
            continue
        key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
        value = Given(env[name], name)
        if key == TOPIC_PREFIX[:-1]:
            maps.update(read_map(key, value))
        elif key.startswith(TOPIC_PREFIX):
            # A shell cannot export a name with a dot; topic settings have no underscores of their own.
            given[key.replace("_", ".")] = value
        elif key in _BY_KEY or "__" in name or difflib.get_close_matches(key, _ALL_NAMES, n=1, cutoff=0.75):
            given[key] = value
        else:
            ignored.append(name)
    return maps | given, tuple(ignored)
