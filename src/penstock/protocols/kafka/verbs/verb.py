"""What a verb is: its name, the right it takes, and the function that does it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.engine.access import THE_CLUSTER, Operation, Resource
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context
from penstock.protocols.kafka.verbs.document import Document
from penstock.security.directory import Directory
from penstock.security.guard import Guard

Answer = Mapping[str, Any]
Right = tuple[Operation, Resource]


class Asked(NamedTuple):
    """One question, of somebody who may ask it."""

    context: Context
    caller: Caller
    document: Document

    @property
    def guard(self) -> Guard:
        """Raises `NoGuard`."""
        if self.context.guard is None:
            raise acls.NoGuard
        return self.context.guard

    @property
    def directory(self) -> Directory:
        """What is in force. Raises `NoGuard`."""
        return self.guard.loader.directory or Directory()


def _the_cluster(document: Document) -> Sequence[Resource]:
    return (THE_CLUSTER,)


def _none(document: Document) -> Sequence[Right]:
    return ()


class Verb(NamedTuple):
    """Fields: see the module's text.

    act: called with who may; raises PenstockError. What it gives becomes JSON.
    fields: those that the document may have.
    about: what the right is taken to; nothing if the verb tells each only what it may see.
    besides: other rights that it takes, and on what.
    changes_rules: whether it changes users, roles, rules or keys. Then the rules decide in every mode, and no API key
        is enough (`Guard.check_change`).
    """

    name: str
    operation: Operation
    act: Callable[[Asked], Awaitable[Answer]]
    fields: frozenset[str] = frozenset()
    about: Callable[[Document], Sequence[Resource]] = _the_cluster
    changes_rules: bool = False
    besides: Callable[[Document], Sequence[Right]] = _none

    def check(self, asked: Asked) -> None:
        """Raises `NotAuthorised`, PenstockError."""
        for resource in self.about(asked.document):
            asked.caller.acting.rights.check(self.operation, *resource)
            if self.changes_rules:
                asked.guard.check_change(asked.caller.acting.subject, self.operation, resource)
        for operation, resource in self.besides(asked.document):
            asked.caller.acting.rights.check(operation, *resource)


def reading(name: str, act: Callable[[Asked], Awaitable[Answer]], *fields: str) -> Verb:
    """One that tells of users, rules and keys."""
    return Verb(name, Operation.DESCRIBE, act, frozenset(fields))


def changing(name: str, act: Callable[[Asked], Awaitable[Answer]], *fields: str) -> Verb:
    """One that changes them."""
    return Verb(name, Operation.ALTER, act, frozenset(fields), changes_rules=True)
