"""Every key that security has in the metadata store, and what is under it.

sec/decoy          the secret that keys of users that are not there are drawn by; does not raise `sec/rev`
sec/rev            how often what is below has changed; each change is one transaction that raises it
sec/users/{name}   a user: its roles, whether it may log in
sec/scram/{name}   what is kept in place of its password, by mechanism
sec/acls/{id}      a rule; the id is made of what is in it
sec/roles/{name}   a role that was made, and its rules
sec/keys/{id}      an API key
sec/used/{id}      the hour an API key was last used in; does not raise `sec/rev`

Names are quoted as in URLs, so that one with a `/` has no part of another's. Every value has a format version.
"""

from typing import Final
from urllib.parse import quote

SECURITY: Final = "sec/"
REVISION: Final = "sec/rev"
DECOY: Final = "sec/decoy"
USERS: Final = "sec/users/"
SCRAM: Final = "sec/scram/"
RULES: Final = "sec/acls/"
ROLES: Final = "sec/roles/"
KEYS: Final = "sec/keys/"
USED: Final = "sec/used/"


def user_path(name: str) -> str:
    return USERS + quote(name, safe="")


def scram_path(name: str) -> str:
    return SCRAM + quote(name, safe="")


def rule_path(rule_id: str) -> str:
    return RULES + rule_id


def role_path(name: str) -> str:
    return ROLES + quote(name, safe="")


def key_path(key_id: str) -> str:
    return KEYS + key_id


def used_path(key_id: str) -> str:
    return USED + key_id
