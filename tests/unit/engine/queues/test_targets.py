"""Dead letters that would come back to where they died."""

import pytest

from penstock.engine.queues.names import QueueName
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.targets import check_no_circle, target_of
from penstock.errors import Code, PenstockError

TARGETS = {"a": ["b"], "b": ["dlq.b", "c"], "c": ["a"], "x": ["y"], "y": ["x"]}


def refused(topic: str, dead_letter: str | None) -> str | None:
    rules = QUEUE_RULES._replace(dead_letter=dead_letter)
    try:
        check_no_circle(QueueName(topic, "g"), rules, lambda name: TARGETS.get(name, []))
    except PenstockError as error:
        return f"{error.code}: {error}"
    return None


@pytest.mark.parametrize(("topic", "dead_letter"), [("q", "a"), ("q", None), ("q", ""), ("q", "x"), ("z", "q")])
def test_no_circle(topic: str, dead_letter: str | None) -> None:
    assert refused(topic, dead_letter) is None


@pytest.mark.parametrize(
    ("topic", "dead_letter", "way"), [("q", "q", "q -> q"), ("a", "c", "a -> c -> a"), ("c", "a", "c -> a -> b -> c")]
)
def test_a_circle(topic: str, dead_letter: str, way: str) -> None:
    said = str(refused(topic, dead_letter))
    assert said.startswith(f"{Code.INVALID_CONFIG}: ")
    assert way in said


def test_where_they_go() -> None:
    name = QueueName("q", "g")
    assert target_of(name, QUEUE_RULES) == "dlq.q.g"
    assert target_of(name, QUEUE_RULES._replace(dead_letter="failed")) == "failed"
    assert target_of(name, QUEUE_RULES._replace(dead_letter=None)) is None
