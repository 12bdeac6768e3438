"""Share sessions against a model that keeps everything in plain lists and looks through all of it each time."""

import os
from random import Random
from typing import Any

import pytest

from penstock.engine.access import Subject
from penstock.protocols.kafka.share_sessions import (
    CLOSING,
    Membership,
    Peer,
    Place,
    SessionRefusal,
    ShareSession,
    ShareSessions,
)

SEEDS = int(os.environ.get("SEEDS", "300"))
STEPS = 120
LAST = (1 << 31) - 1
CAPACITY, MOST_PARTITIONS = 5, 40
MEMBERSHIPS = [Membership(group, member) for group in "gh" for member in "abcd"]
PLACES: list[Place] = [(bytes([topic]) * 16, index) for topic in (1, 2, 3) for index in range(5)]
SUBJECTS = [Subject("User:alice"), Subject("User:bob")]


class ModelSession:
    def __init__(self, membership: Membership, peer: int, owner: str) -> None:
        self.membership = membership
        self.peer = peer
        self.owner = owner
        self.expected = 1
        self.partitions: list[Place] = []
        self.unclean: set[Place] = set()


class Model:
    """All sessions there are; the one longest unused is first."""

    def __init__(self) -> None:
        self.sessions: list[ModelSession] = []

    def of(self, membership: Membership) -> ModelSession | None:
        return next((each for each in self.sessions if each.membership == membership), None)

    def refusal(self, membership: Membership, epoch: int, asker: str) -> int:
        session = self.of(membership)
        if session is None or session.owner != asker:
            return 123 if epoch == 0 else 122
        return 0 if epoch in (CLOSING, session.expected) else 123

    def used(self, session: ModelSession) -> None:
        self.sessions.remove(session)
        self.sessions.append(session)

    def update(self, session: ModelSession, added: list[Place], forgotten: list[Place]) -> list[Membership]:
        for place in added:
            if place not in session.partitions:
                session.partitions.append(place)
                session.unclean.add(place)
        for place in forgotten:
            if place in session.partitions:
                session.partitions.remove(place)
                session.unclean.discard(place)
        ended = []
        while sum(len(each.partitions) for each in self.sessions) > MOST_PARTITIONS:
            held = {
                owner: sum(len(each.partitions) for each in self.sessions if each.owner == owner)
                for owner in {each.owner for each in self.sessions}
            }
            loser = next(each for each in self.sessions if held[each.owner] == max(held.values()) and each.partitions)
            ended.append(loser.membership)
            self.sessions.remove(loser)
        return ended


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sessions = ShareSessions(CAPACITY, MOST_PARTITIONS)
        self.model = Model()
        self.peers = [Peer() for _ in range(4)]

    def step(self) -> None:
        getattr(self, self.random.choice(["open", "accept", "accept", "accept", "answer", "close", "disconnect"]))()
        self.compare()

    def open(self) -> None:
        random, model = self.random, self.model
        membership, peer, owner = random.choice(MEMBERSHIPS), random.randrange(4), random.choice(SUBJECTS)
        before, known = self.sessions.get(membership), model.of(membership)
        assert (before is None) == (known is None)
        if before is not None and known is not None:
            self.sessions.end(before)
            model.sessions.remove(known)
        if len(model.sessions) >= CAPACITY:
            with pytest.raises(SessionRefusal) as refused:
                self.sessions.open(membership, self.peers[peer], owner)
            assert refused.value.code == 133
            return
        session = self.sessions.open(membership, self.peers[peer], owner)
        model.sessions.append(ModelSession(membership, peer, owner.principal))
        self.update(session, random.sample(PLACES, random.randrange(len(PLACES))), [])

    def accept(self) -> None:
        random, model = self.random, self.model
        membership, asker = random.choice(MEMBERSHIPS), random.choice(SUBJECTS)
        known = model.of(membership)
        expected = known.expected if known is not None else 1
        if known is not None and random.random() < 0.8:
            asker = Subject(known.owner)
        epoch = random.choice([expected] * 8 + [0, CLOSING, expected - 1, expected + 1, LAST])
        code = model.refusal(membership, epoch, asker.principal)
        if code:
            with pytest.raises(SessionRefusal) as refused:
                self.sessions.accept(membership, epoch, asker)
            assert refused.value.code == code
            return
        session = self.sessions.accept(membership, epoch, asker)
        assert known is not None and session.membership == membership
        if epoch == CLOSING:
            return
        known.expected = 1 if epoch == LAST else epoch + 1
        model.used(known)
        if random.random() < 0.1:
            known.expected = session.epoch = random.choice([LAST, LAST - 1])
        if random.random() < 0.6:
            self.update(session, random.sample(PLACES, random.randrange(4)), random.sample(PLACES, random.randrange(4)))

    def update(self, session: ShareSession, added: list[Place], forgotten: list[Place]) -> None:
        known = self.model.of(session.membership)
        assert known is not None
        expected = self.model.update(known, added, forgotten)
        assert [each.membership for each in self.sessions.update(session, added, forgotten)] == expected

    def answer(self) -> None:
        known = self.random.choice(self.model.sessions) if self.model.sessions else None
        if known is None:
            return
        session = self.sessions.get(known.membership)
        assert session is not None
        for place in self.random.sample(PLACES, 5):
            code = self.random.choice([0, 0, 3, 6])
            session.answered(place, code)
            if place in known.partitions:
                (known.unclean.add if code else known.unclean.discard)(place)

    def close(self) -> None:
        membership = self.random.choice(MEMBERSHIPS)
        session, known = self.sessions.get(membership), self.model.of(membership)
        if session is not None and known is not None:
            assert self.sessions.end(session)
            self.model.sessions.remove(known)

    def disconnect(self) -> None:
        number = self.random.randrange(4)
        gone = {each.membership for each in self.model.sessions if each.peer == number}
        ended = self.sessions.disconnected(self.peers[number])
        assert {each.membership for each in ended} == gone
        assert all(each.is_over for each in ended)
        self.model.sessions = [each for each in self.model.sessions if each.peer != number]
        self.peers[number] = Peer()

    def compare(self) -> None:
        assert len(self.sessions) == len(self.model.sessions) <= CAPACITY
        for known in self.model.sessions:
            session: Any = self.sessions.get(known.membership)
            assert session.epoch == known.expected and not session.is_over
            assert list(session.partitions) == known.partitions
            for place in PLACES:
                assert session.must_answer(place) == (place in known.unclean)
            count = len(known.partitions)
            for epoch in (0, 1, known.expected):
                start = epoch % count if count else 0
                assert session.rotated(epoch) == [known.partitions[(start + each) % count] for each in range(count)]


@pytest.mark.parametrize("seed", [int(os.environ["SEED"])] if "SEED" in os.environ else range(SEEDS))
def test_the_model_agrees(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
