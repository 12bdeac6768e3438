"""Answers to Metadata that are kept: whose they are, how long, and who makes room."""

from penstock.engine.access import Subject
from penstock.engine.acting.acting import Scope
from penstock.protocols.kafka.handlers import Answers

ALICE, EVE = Subject("User:alice", host="10.0.0.1"), Subject("User:eve", host="10.0.0.2")
MOST = Answers._CAPACITY


def put(answers: Answers, scope: Scope, *requests: bytes, revision: int = 1) -> None:
    for request in requests:
        answers.get(revision, scope, 9, memoryview(request))
        answers.put(revision, scope, 9, request, b"of " + request)


def kept(answers: Answers, scope: Scope, *requests: bytes, revision: int = 1) -> list[bytes]:
    return [each for each in requests if answers.get(revision, scope, 9, memoryview(each)) == b"of " + each]


def test_an_answer_is_for_who_asked_so_long_as_topics_and_rules_stay() -> None:
    answers = Answers()
    put(answers, (5, ALICE), b"a")
    assert kept(answers, (5, ALICE), b"a") == [b"a"]
    assert answers.get(1, (5, ALICE), 8, memoryview(b"a")) is None
    assert kept(answers, (5, EVE), b"a") == kept(answers, (5, ALICE._replace(host="10.0.0.9")), b"a") == []
    assert kept(answers, (5, ALICE), b"a") == [b"a"]
    assert kept(answers, (6, ALICE), b"a") == kept(answers, (5, ALICE), b"a") == [], "of other rules"
    put(answers, (5, ALICE), b"a")
    assert kept(answers, (5, ALICE), b"a", revision=2) == kept(answers, (5, ALICE), b"a") == [], "of other topics"
    answers.get(1, (5, ALICE), 9, memoryview(b"a"))
    answers.put(2, (5, ALICE), 9, b"a", b"of a")
    answers.put(1, (6, ALICE), 9, b"a", b"of a")
    assert kept(answers, (5, ALICE), b"a") == [], "made while they changed"


def test_nobody_flushes_what_others_have() -> None:
    answers, mine = Answers(), [b"a%d" % number for number in range(4)]
    put(answers, (5, ALICE), *mine)
    for number in range(500):  # from many addresses, too
        put(answers, (5, EVE._replace(host=str(number))), b"e%d" % number)
    assert kept(answers, (5, ALICE), *mine) == mine
    assert len(answers._kept) == MOST and answers._held == {"User:alice": 4, "User:eve": MOST - 4}
    more = [b"m%d" % number for number in range(MOST)]
    put(answers, (5, ALICE), *more)
    assert answers._held == {"User:alice": MOST // 2, "User:eve": MOST // 2}
    assert kept(answers, (5, ALICE), *more) == more[-MOST // 2 :], "the oldest goes first"
    for number in range(500):
        put(answers, (5, Subject(f"User:{number}")), b"a")
    assert len(answers._kept) == len(answers._held) == MOST


def test_without_rules_all_share_the_room() -> None:
    answers, requests = Answers(), [b"%d" % number for number in range(MOST + 3)]
    put(answers, (0, None), *requests, *requests[-5:])
    assert kept(answers, (0, None), *requests) == requests[3:]
