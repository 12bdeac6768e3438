"""Brokers' security in virtual time: one store, and for each broker what it needs to know who may do what."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, ParamSpec, TypeVar

from penstock.engine.access import Access
from penstock.security.authentication import Authenticator, Peer
from penstock.security.changes import Changes
from penstock.security.key_changes import KeyChanges, UsedKeys
from penstock.security.loader import Loader
from penstock.security.methods import SuperUsers
from penstock.security.modes import Mode
from penstock.security.passwords import Passwords
from penstock.security.rule_changes import RuleChanges
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.user_changes import UserChanges
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock

PEER = Peer("10.0.0.1", "kafka")
SEALING = SealingKeys(Secret(b"s" * 32))


P = ParamSpec("P")
T = TypeVar("T")


async def at_once(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """In place of a thread."""
    return function(*arguments, **named)


class Node:
    """What one broker has."""

    def __init__(
        self,
        etcd: SimulatedEtcd,
        name: str = "broker 1",
        mode: Mode = Mode.CLOSED,
        *,
        supers: SuperUsers | None = None,
        in_thread: Callable[..., Awaitable[Any]] = at_once,
        relist_s: float = 10.0,
    ) -> None:
        self.etcd = etcd
        self.link = etcd.link(name)
        self.store = etcd.client(name)
        self.clock = VirtualClock()
        random = Random(name)
        self.access = Access()
        self.loader = Loader(
            self.store, self.access, self.clock, mode, supers=supers, in_thread=in_thread, relist_s=relist_s
        )
        changes = Changes(self.loader)
        self.users = UserChanges(changes, self.clock, random, at_once)
        self.rules = RuleChanges(changes, self.loader)
        self.keys = KeyChanges(changes, self.loader, SEALING, self.clock, random)
        self.used = UsedKeys(self.store)
        self.passwords = Passwords(self.clock, random, in_thread)
        self.authenticator = Authenticator(self.loader, self.clock, random, self.passwords, self.used)

    async def begin(self) -> "Node":
        await self.loader.start()
        return self
