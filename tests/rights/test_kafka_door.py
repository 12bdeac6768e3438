"""Every API of the Kafka door, asked by everybody: each is answered as Apache Kafka's own authorizer has it.

What Kafka answered is in golden/; RECORD=1 (`make golden`) asks it and writes that, PENSTOCK_TEST_PEER=kafka asks it
and compares.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.conftest import PEER

from .brokers import kafka_broker, penstock_broker, settle
from .cells import Cells, Unasked, ask_all, load, look, save
from .differences import DIFFERENCES, expected
from .model import Model, Need
from .questions import ASKED, QUESTIONS
from .rules import SUPER, THEMES, all_rules, principals

RECORD = bool(os.environ.get("RECORD"))
HERE = "127.0.0.1"
_DELETES_ALL = {"delete_topics 6 by id": [Need("DELETE", "cluster")]}
"""Whoever may delete all topics is told what it has deleted."""
KAFKAS = Path(__file__).parents[2] / "docs" / "kafka.md"


class Told(NamedTuple):
    """Everything the broker under test answers to everybody, and what was in it before and after."""

    cells: Cells
    unasked: Unasked
    before: Sequence[str]
    after: Sequence[str]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    directory = tmp_path_factory.mktemp("rights")
    live = RECORD or PEER == "kafka"
    with kafka_broker(directory) if live else penstock_broker(directory) as addresses:
        world = settle(addresses.kafka)
        before = look(addresses.kafka)
        yield Told(*ask_all(addresses.kafka, world, principals()), before, look(addresses.kafka))


@pytest.mark.parametrize("theme", THEMES)
def test_each_is_answered_as_by_kafka(theme: str, told: Told) -> None:
    if RECORD:
        save(theme, told.cells)
    wrong = []
    for user, kafkas in load(theme).items():
        for name, said in told.cells[user].items():
            wanted = kafkas[name] if RECORD or PEER == "kafka" else expected(name, kafkas)
            if said != wanted:
                wrong.append(f"{user} asks {name}\n  is told {said}\n  not     {wanted}")
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])


@pytest.mark.skipif(RECORD or PEER == "kafka", reason="a promise of Penstock's")
def test_no_answer_names_a_topic_that_was_not_named_and_may_not_be_seen(told: Told) -> None:
    """Neither in what is listed nor in what is said of a refusal."""
    model = Model(all_rules(), [SUPER])
    wrong = []
    for user, answers in told.unasked.items():
        for name, topics in answers.items():
            for topic in topics:
                enough = (Need("DESCRIBE", "topic", topic), *_DELETES_ALL.get(name, ()))
                if not any(model.may(user, HERE, need) for need in enough):
                    wrong.append(f"{user} asks {name} and is told of {topic}")
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])


def test_no_question_has_changed_anything(told: Told) -> None:
    """Neither those that are refused nor those that are not, which are asked for what leaves everything as it is."""
    assert told.after == told.before


def test_every_api_is_asked() -> None:
    assert {question.api for question in QUESTIONS} == ASKED


def test_every_difference_is_one_and_is_told() -> None:
    """A difference that no cell has is to be taken from the table, and one that users are not told of into the page."""
    page = KAFKAS.read_text()
    for name, (why, _) in DIFFERENCES.items():
        assert any(expected(name, kafkas) != kafkas[name] for theme in THEMES for kafkas in load(theme).values()), (
            f"Kafka answers {name} alike"
        )
        assert why in page, f"docs/kafka.md does not say that {why}"
