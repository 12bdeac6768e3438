"""Rules for tests."""

from collections.abc import Hashable

from penstock.engine.access import Kind, Operation, Resource, Subject


class Only:
    """One may do one thing to anything, and nobody anything else.

    Attributes:
        asked: what it was asked about.
    """

    revision = 1
    is_open = False

    def __init__(self, subject: Subject, operation: Operation) -> None:
        self._subject = subject
        self._operation = operation
        self.asked: list[Resource] = []

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        self.asked.append(resource)
        return (subject, operation) == (self._subject, self._operation)

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return (subject, operation) == (self._subject, self._operation)

    def likeness(self, subject: Subject) -> Hashable:
        return subject


class Nothing:
    """Nobody may do anything."""

    revision = 1
    is_open = False

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return False

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return False

    def likeness(self, subject: Subject) -> Hashable:
        return None
