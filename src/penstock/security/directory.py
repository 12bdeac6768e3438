"""Everything that security keeps, as of one revision: users, what stands for their passwords, keys, roles, rules.

Made whole of what is in the metadata store, or not at all: if one value cannot be read, nobody knows what it would
have denied. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from penstock.engine.access import Kind, Operation
from penstock.ports.metadata import Entry
from penstock.security import paths
from penstock.security.api_keys import ApiKey
from penstock.security.decoys import SECRET_BYTES, Models
from penstock.security.methods import SuperUsers
from penstock.security.names import user_principal
from penstock.security.roles import BUILT_IN, built_in_rules, role_principal
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.ruleset import Ruleset
from penstock.security.scram import Mechanism, ScramKeys
from penstock.security.secret import Secret

VERSION: Final = 1
"""Of the format of each value. One that is higher was written by a later release, and is not guessed at."""


class Unreadable(Exception):
    """A value in the metadata store that this release cannot read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path!r} in the metadata store cannot be read: {why}")
        self.path = path


@dataclass(frozen=True, slots=True)
class User:
    """What is under `sec/users/{name}`."""

    name: str
    roles: tuple[str, ...] = ()
    is_enabled: bool = True
    may_use_certificate: bool = False
    """Whether who has a certificate of that name is this user; else such a certificate proves nothing."""
    made_ms: int = 0


class Credential(NamedTuple):
    """What is under `sec/scram/{name}`."""

    keys: Mapping[Mechanism, ScramKeys]
    revision: int
    """Of the store, when it was last changed."""


@dataclass(frozen=True, slots=True)
class Directory:
    """See the module's text.

    Attributes:
        revision: how often it had been changed; what doors tell as the revision of the rules.
        seen: the store's revision of `sec/rev`, which a change expects; 0: nothing was ever kept.
        models: what the keys of its users are like.
        decoy: what keys of users that are not there are drawn by; None: nobody has made it yet.
    """

    revision: int = 0
    seen: int = 0
    users: Mapping[str, User] = field(default_factory=dict)
    credentials: Mapping[str, Credential] = field(default_factory=dict, repr=False)
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    roles: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """By their ids. Those of roles are not among them."""
    models: Models = field(default_factory=Models, repr=False, compare=False)
    decoy: Secret | None = None

    def make_ruleset(self, supers: SuperUsers, revision: int) -> Ruleset:
        """The policy of all this."""
        granted = {grant for user in self.users.values() for grant in user.roles}
        rules = list(self.rules.values())
        for grant in sorted(granted):
            if grant.partition(":")[0] in BUILT_IN:
                rules += built_in_rules(grant)
        for made in self.roles.values():
            rules += made
        members = {
            user_principal(user.name): tuple(role_principal(grant) for grant in user.roles)
            for user in self.users.values()
        }
        scopes = {key.id: key.rules for key in self.keys.values()}
        return Ruleset(revision, rules, members=members, scopes=scopes, supers=supers)

    @classmethod
    def decode(cls, entries: Iterable[Entry]) -> "Directory":
        """Raises `Unreadable`."""
        found: dict[str, dict[str, Any]] = {prefix: {} for prefix in _DECODERS}
        revision = seen = 0
        decoy = None
        for entry in entries:
            prefix = entry.key[: entry.key.find("/", len(paths.SECURITY)) + 1]
            try:
                if entry.key == paths.REVISION:
                    revision, seen = _fields(entry)["revision"], entry.revision
                elif entry.key == paths.DECOY:
                    decoy = _decode_decoy(entry)
                elif prefix in _DECODERS:  # others are of later releases, and of what no rule depends on
                    name, value = _DECODERS[prefix](entry)
                    found[prefix][name] = value
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Unreadable(entry.key, str(error) or type(error).__name__) from error
        users, credentials, keys, roles, rules = (found[prefix] for prefix in _DECODERS)
        models = Models(kept.keys for kept in credentials.values())
        return cls(revision, seen, users, credentials, keys, roles, rules, models, decoy)


def encode_revision(revision: int) -> bytes:
    return _encode({"revision": revision})


def encode_decoy(secret: bytes) -> bytes:
    return _encode({"secret": secret.hex()})


def encode_user(user: User) -> bytes:
    return _encode(
        {
            "name": user.name,
            "roles": list(user.roles),
            "enabled": user.is_enabled,
            "certificate": user.may_use_certificate,
            "made_ms": user.made_ms,
        }
    )


def encode_credential(name: str, keys: Mapping[Mechanism, ScramKeys]) -> bytes:
    kept = {
        str(mechanism): {
            "salt": each.salt.hex(),
            "stored_key": each.stored_key.hex(),
            "server_key": each.server_key.hex(),
            "iterations": each.iterations,
        }
        for mechanism, each in keys.items()
    }
    return _encode({"name": name, "keys": kept})


def encode_rule(rule: Rule) -> bytes:
    return _encode(rule._asdict())


def encode_role(name: str, rules: Iterable[Rule]) -> bytes:
    return _encode({"name": name, "rules": [rule._asdict() for rule in rules]})


def encode_key(key: ApiKey) -> bytes:
    return _encode(
        {
            "id": key.id,
            "user": key.user,
            "digest": key.digest,
            "made_ms": key.made_ms,
            "until_ms": key.until_ms,
            "rules": None if key.rules is None else [rule._asdict() for rule in key.rules],
            "sealed": key.sealed,
            "note": key.note,
        }
    )


def _encode(fields: Mapping[str, object]) -> bytes:
    return orjson.dumps({"version": VERSION, **fields})


def _fields(entry: Entry) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = orjson.loads(entry.value)
    if fields["version"] != VERSION:
        raise ValueError(f"format version {fields['version']}; this release reads {VERSION}")
    return fields


def _decode_decoy(entry: Entry) -> Secret:
    secret = bytes.fromhex(_fields(entry)["secret"])
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes; there should be {SECRET_BYTES}")
    return Secret(secret)


def _decode_user(entry: Entry) -> tuple[str, User]:
    fields = _fields(entry)
    name = _named(fields["name"], entry, paths.user_path)
    return name, User(
        name, tuple(map(_text, fields["roles"])), _bool(fields["enabled"]), _bool(fields["certificate"]),
        int(fields["made_ms"]),
    )  # fmt: skip


def _decode_credential(entry: Entry) -> tuple[str, Credential]:
    fields = _fields(entry)
    keys = {
        Mechanism(mechanism): ScramKeys(
            bytes.fromhex(each["salt"]),
            bytes.fromhex(each["stored_key"]),
            bytes.fromhex(each["server_key"]),
            int(each["iterations"]),
        )
        for mechanism, each in fields["keys"].items()
    }
    return _named(fields["name"], entry, paths.scram_path), Credential(keys, entry.revision)


def _decode_rule(entry: Entry) -> tuple[str, Rule]:
    rule = _rule(_fields(entry))
    return _named(rule.id, entry, paths.rule_path), rule


def _decode_role(entry: Entry) -> tuple[str, tuple[Rule, ...]]:
    fields = _fields(entry)
    return _named(fields["name"], entry, paths.role_path), tuple(map(_rule, fields["rules"]))


def _decode_key(entry: Entry) -> tuple[str, ApiKey]:
    fields = _fields(entry)
    rules = fields["rules"]
    key = ApiKey(
        _named(fields["id"], entry, paths.key_path),
        _text(fields["user"]),
        _text(fields["digest"]),
        int(fields["made_ms"]),
        int(fields["until_ms"]),
        None if rules is None else tuple(map(_rule, rules)),
        _text(fields["sealed"]),
        _text(fields["note"]),
    )
    return key.id, key


def _rule(fields: Mapping[str, Any]) -> Rule:
    return Rule(
        _text(fields["principal"]),
        _text(fields["host"]),
        Operation(fields["operation"]),
        Kind(fields["kind"]),
        Pattern(fields["pattern"]),
        _text(fields["name"]),
        Effect(fields["effect"]),
    )


def _named(name: object, entry: Entry, path: Callable[[str], str]) -> str:
    """A value says whose it is: one that was put under another key is not believed."""
    said = _text(name)
    if path(said) != entry.key:
        raise ValueError(f"it is of {said!r}")
    return said


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text should be")
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} where true or false should be")
    return value


_DECODERS: Final[Mapping[str, Callable[[Entry], tuple[str, Any]]]] = {
    paths.USERS: _decode_user,
    paths.SCRAM: _decode_credential,
    paths.KEYS: _decode_key,
    paths.ROLES: _decode_role,
    paths.RULES: _decode_rule,
}
"""In the order of the fields of a `Directory`."""
