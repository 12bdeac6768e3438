"""The internal listener: who is let in there, and what a broker may ask besides what clients may.

A peer first proves that it is a broker of this cluster, by its certificate or by SCRAM. Until then it gets little
memory, little time, and no answer to anything else.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from penstock.engine.access import BROKERS, Subject
from penstock.engine.engine import Engine
from penstock.net.connection import Connection
from penstock.ports.clock import Clock
from penstock.protocols.internal import copy_segment, forwarding, reading
from penstock.protocols.internal.identity import Identity, broker_name
from penstock.protocols.internal.reading import Questions
from penstock.protocols.kafka_wire.guest import Guest, OwnApi


class Reception:
    """Args:
    engine: whose segments are lent, and whose partitions others publish to and read.
    identity: what brokers prove themselves by, unless their certificate does.
    members: ids of the brokers of the cluster, as far as this one knows.
    """

    def __init__(
        self, engine: Engine, clock: Clock, identity: Identity | None, members: Callable[[], Iterable[int]]
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._members = members
        self.identity = identity
        self._own_apis: Mapping[int, OwnApi] = {
            copy_segment.API.key: OwnApi(copy_segment.API, partial(copy_segment.begin, engine)),
            forwarding.API.key: OwnApi(forwarding.API, partial(forwarding.begin, engine)),
        }
        self.refused: dict[str, float] = {}
        """When whoever calls itself by the name of a broker of the cluster last failed to prove that it is one."""

    def receive(self, connection: Connection) -> Guest:
        login = self.identity.make_login(self._note) if self.identity is not None else None
        questions = Questions(self._engine, connection)
        known_as = BROKERS if connection.certified else None
        guest = Guest(connection, login, known_as=known_as, own_apis=self.own_apis(questions))
        guest.announce(_nobody, questions.close)
        return guest

    def own_apis(self, questions: Questions) -> Mapping[int, OwnApi]:
        """What a broker may ask, besides what clients may; `questions` are those of its connection."""
        return {**self._own_apis, reading.API.key: OwnApi(reading.API, questions.begin)}

    def _note(self, name: str, proved: bool) -> None:
        """Only names of brokers: a peer can call itself anything."""
        if proved:
            self.refused.pop(name, None)
        elif name in map(broker_name, self._members()):
            self.refused[name] = self._clock.monotonic()


def _nobody(subject: Subject) -> None:
    return None
