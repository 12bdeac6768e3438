"""`penstock group lag --watch` in a real terminal: drawn in place, through a broker's absence, until Ctrl+C."""

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.testing import EmbeddedBroker
from tests.peers import penstock

from .tmux import Terminal

DEADLINE_S = 60


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0


def lines_with(terminal: Terminal, text: str) -> list[str]:
    return [line for line in terminal.screen().splitlines() if text in line]


def test_the_table_is_redrawn_where_it_stands(terminal: Terminal, broker: EmbeddedBroker, topic: str) -> None:
    fill(broker.bootstrap, topic, 7)
    commit(broker.bootstrap, topic, topic, 0)
    terminal.enter(f"penstock group lag {topic} --watch 0.1")
    terminal.wait_text("total lag 7 of 1 group")
    for offset in (3, 5, 7):
        commit(broker.bootstrap, topic, topic, offset)
        terminal.wait_text(f"total lag {7 - offset} of 1 group")
        assert len(lines_with(terminal, "total lag")) == 1
    terminal.press("C-c")
    done = terminal.finish()
    assert done.code == 130
    assert "total lag 0 of 1 group" in done.text
    assert "Traceback" not in done.text


def test_a_broker_that_is_away_for_a_while(terminal: Terminal, topic: str, tmp_path: Path) -> None:
    first = penstock.start(tmp_path)
    try:
        fill(first.bootstrap, topic, 7)
        commit(first.bootstrap, topic, topic, 2)
        terminal.enter(f"penstock group lag {topic} --watch 0.1 --timeout 2 --server {first.bootstrap}")
        terminal.wait_text("total lag 5 of 1 group")
    finally:
        first.stop()
    terminal.wait_text("trying again every 0.1 s")
    assert len(lines_with(terminal, "total lag 5 of 1 group")) == 1
    second = penstock.start(tmp_path, flags=["--kafka", first.bootstrap])
    try:
        commit(second.bootstrap, topic, topic, 7)
        terminal.wait_text("total lag 0 of 1 group")
    finally:
        second.stop()
    terminal.press("C-c")
    done = terminal.finish()
    assert done.code == 130
    assert "Traceback" not in done.text
