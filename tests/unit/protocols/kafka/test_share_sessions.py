"""Share sessions: epochs, what is added and forgotten, who ends what, how much there may be; and lines."""

import pytest

from penstock.engine.access import ANONYMOUS, Subject
from penstock.protocols.kafka.share_sessions import (
    CLOSING,
    Lines,
    Membership,
    Peer,
    SessionRefusal,
    ShareSession,
    ShareSessions,
    Turn,
)

NOT_FOUND, WRONG_EPOCH, NO_ROOM = 122, 123, 133
LAST = (1 << 31) - 1
MINE, OTHER = Membership("g", "me"), Membership("g", "you")
T = bytes(15) + b"t"
U = bytes(15) + b"u"


def refusal(sessions: ShareSessions, epoch: int, asker: Subject = ANONYMOUS, membership: Membership = MINE) -> int:
    with pytest.raises(SessionRefusal) as refused:
        sessions.accept(membership, epoch, asker)
    return refused.value.code


def opened(*places: tuple[bytes, int]) -> tuple[ShareSessions, ShareSession]:
    sessions = ShareSessions()
    session = sessions.open(MINE, Peer())
    sessions.update(session, places)
    return sessions, session


# --- epochs


def test_a_new_session_expects_one_and_then_one_more_each_time() -> None:
    sessions, session = opened()
    for epoch in (1, 2, 3):
        assert sessions.accept(MINE, epoch) is session
    assert session.epoch == 4


def test_one_follows_the_last_epoch() -> None:
    sessions, session = opened()
    session.epoch = LAST
    sessions.accept(MINE, LAST)
    assert session.epoch == 1


def test_any_other_epoch_is_refused_and_changes_nothing() -> None:
    sessions, session = opened()
    sessions.accept(MINE, 1)
    assert [refusal(sessions, epoch) for epoch in (0, 1, 3, -2, LAST, -(1 << 31))] == [WRONG_EPOCH] * 6
    assert session.epoch == 2


def test_a_session_that_was_not_opened_is_not_found() -> None:
    sessions, _ = opened()
    assert refusal(sessions, 1, membership=OTHER) == NOT_FOUND
    assert refusal(sessions, CLOSING, membership=OTHER) == NOT_FOUND
    assert refusal(sessions, 1, membership=Membership("other group", "me")) == NOT_FOUND
    assert refusal(sessions, 0, membership=OTHER) == WRONG_EPOCH, "only ShareFetch opens one"


def test_closing_fits_every_epoch_and_counts_in_none() -> None:
    sessions, session = opened()
    assert sessions.accept(MINE, CLOSING) is session
    assert session.epoch == 1 and not session.is_over
    assert sessions.end(session)
    assert session.is_over and refusal(sessions, 1) == NOT_FOUND
    assert not sessions.end(session), "once"


def test_a_session_is_its_openers() -> None:
    alice, bob = Subject("User:alice"), Subject("User:bob")
    sessions = ShareSessions()
    session = sessions.open(MINE, Peer(), alice)
    assert refusal(sessions, 1, bob) == refusal(sessions, CLOSING, bob) == NOT_FOUND
    assert sessions.accept(MINE, 1, alice._replace(host="10.0.0.9")) is session


# --- partitions


def test_partitions_are_added_and_then_others_are_taken_out() -> None:
    sessions, session = opened((T, 0), (T, 1))
    sessions.update(session, [(U, 0)])
    assert list(session.partitions) == [(T, 0), (T, 1), (U, 0)]
    sessions.update(session, [(T, 7), (T, 0)], [(T, 7), (T, 1)])
    assert list(session.partitions) == [(T, 0), (U, 0)], "named in both lists at once, it is out"
    sessions.update(session, [], [(T, 1), (U, 9)])
    assert list(session.partitions) == [(T, 0), (U, 0)]


def test_partitions_take_turns() -> None:
    _, session = opened((T, 0), (T, 1), (T, 2))
    assert session.rotated(0) == session.rotated(3) == [(T, 0), (T, 1), (T, 2)]
    assert session.rotated(1) == [(T, 1), (T, 2), (T, 0)]
    assert session.rotated(LAST) == [(T, 1), (T, 2), (T, 0)]
    assert opened()[1].rotated(5) == []


def test_a_partition_is_answered_until_that_was_clean() -> None:
    sessions, session = opened((T, 0))
    assert session.must_answer((T, 0))
    session.answered((T, 0), 6)
    assert session.must_answer((T, 0))
    session.answered((T, 0), 0)
    assert not session.must_answer((T, 0))
    sessions.update(session, [(T, 0)])
    assert not session.must_answer((T, 0)), "it was in already"
    sessions.update(session, [(T, 0)], [(T, 0)])
    assert not session.must_answer((T, 0)), "it is out"
    session.answered((T, 0), 6)
    sessions.update(session, [(T, 0)])
    assert session.must_answer((T, 0)), "it is new"


def test_an_error_is_news_once() -> None:
    _, session = opened((T, 0))
    assert session.is_news((T, 0), 3)
    session.answered((T, 0), 3)
    assert not session.is_news((T, 0), 3) and session.is_news((T, 0), 6)
    session.answered((T, 0), 0)
    assert session.is_news((T, 0), 3)
    assert not session.is_news((U, 0), 3), "nobody fetches it"


# --- connections


def test_only_the_connection_that_opened_a_session_ends_it() -> None:
    sessions, early, late = ShareSessions(), Peer(), Peer()
    first = sessions.open(MINE, early)
    others = sessions.open(OTHER, early)
    sessions.end(first)
    again = sessions.open(MINE, late)
    assert sessions.disconnected(early) == [others]
    assert early.is_gone and not late.is_gone
    assert others.is_over and not again.is_over
    assert sessions.accept(MINE, 1) is again
    assert sessions.disconnected(early) == []
    assert sessions.disconnected(late) == [again]
    assert len(sessions) == 0 and not sessions._of_peer


# --- room


def test_there_are_so_many_sessions_and_no_more() -> None:
    sessions, peer = ShareSessions(capacity=2), Peer()
    first = sessions.open(MINE, peer)
    sessions.open(OTHER, peer)
    third = Membership("g", "third")
    with pytest.raises(SessionRefusal) as refused:
        sessions.open(third, peer)
    assert refused.value.code == NO_ROOM
    assert refusal(sessions, 1, membership=third) == NOT_FOUND
    sessions.end(first)
    sessions.open(third, peer)


def test_who_has_most_partitions_loses_the_session_longest_unused() -> None:
    alice, eve = Subject("User:alice"), Subject("User:eve")
    sessions = ShareSessions(max_partitions=10)
    mine = sessions.open(MINE, Peer(), alice)
    assert sessions.update(mine, [(T, each) for each in range(3)]) == []
    hers = []
    for number in range(3):
        hers.append(sessions.open(Membership("g", f"eve {number}"), Peer(), eve))
        sessions.update(hers[-1], [(U, each) for each in range(2)])
    sessions.accept(hers[0].membership, 1, eve)
    assert sessions.update(hers[2], [(U, each) for each in range(4)]) == [hers[1]]
    assert [each.is_over for each in (mine, *hers)] == [False, False, True, False]
    assert sessions.update(hers[2], [(U, each) for each in range(50)]) == [hers[2]], "be it the one that grows"
    assert sessions._partitions == 5 and sessions._partitions_of == {"User:alice": 3, "User:eve": 2}
    sessions.end(mine)
    sessions.end(hers[0])
    assert not sessions._partitions and not sessions._partitions_of


# --- lines


class Told:
    def __init__(self, lines: Lines, membership: Membership, name: str, heard: list[str]) -> None:
        self.turn = Turn(membership, lambda: heard.append(f"{name} begins"), lambda: heard.append(f"{name} hurries"))
        lines.join(self.turn)


def test_one_is_under_way_at_a_time_and_is_hurried_by_the_next() -> None:
    lines, heard = Lines(), list[str]()
    first = Told(lines, MINE, "first", heard)
    second = Told(lines, MINE, "second", heard)
    assert heard == ["first begins", "first hurries"]
    third = Told(lines, MINE, "third", heard)
    heard.clear()
    lines.leave(first.turn)
    assert heard == ["second begins", "second hurries"]
    heard.clear()
    lines.leave(second.turn)
    assert heard == ["third begins"]
    lines.leave(third.turn)
    assert len(lines) == 0


def test_members_do_not_wait_for_each_other() -> None:
    lines, heard = Lines(), list[str]()
    Told(lines, MINE, "mine", heard)
    Told(lines, OTHER, "other", heard)
    Told(lines, Membership("h", "me"), "elsewhere", heard)
    assert heard == ["mine begins", "other begins", "elsewhere begins"]


def test_who_gives_up_lets_the_others_stay_in_order() -> None:
    lines, heard = Lines(), list[str]()
    first, second, third = (Told(lines, MINE, name, heard) for name in ("first", "second", "third"))
    heard.clear()
    lines.leave(second.turn)
    assert heard == []
    lines.leave(first.turn)
    assert heard == ["third begins"]
    lines.leave(third.turn)
