"""Who tells of brokers that do not answer, while Spark waits for them and says nothing."""

import time
from collections.abc import Callable, Iterator

import pytest

from penstock.client.cluster import Cluster
from penstock.client.settings import Settings
from penstock.pipelines.home.status import State, Status
from penstock.pipelines.model import DeadLetters, Source, Spec
from penstock.pipelines.run.brokers import asking
from penstock.pipelines.run.counters import Counters
from penstock.pipelines.run.watching import Watch
from penstock.testing import EmbeddedBroker, embedded_broker

DEADLINE_S = 60


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(partitions=1, topic_defaults={"flush": "os"}) as running:
        with Cluster(Settings(running.bootstrap)) as cluster:
            cluster.create_topic("orders", 2, {})
        yield running


def pipeline(server: str, *topics: str) -> Spec:
    sources = tuple(Source(topic, "topic", {"topic": (topic,), "from": "earliest"}) for topic in topics)
    return Spec("p", sources, (), (), DeadLetters("drop"), server)


def watch_over(spec: Spec) -> Watch:
    watch = Watch(spec, Status(spec.name, State.STARTING), Counters())
    watch.began = {each.name: {each.name: {"0": 0, "1": 0}} for each in spec.sources}
    return watch


def wait(watch: Watch, condition: Callable[[Status], bool]) -> Status:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(status := watch.now(State.RUNNING)):
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    return status


def test_a_broker_that_goes_away_is_told_of() -> None:
    with embedded_broker(partitions=1, topic_defaults={"flush": "os"}) as broker:
        with Cluster(Settings(broker.bootstrap)) as cluster:
            cluster.create_topic("orders", 2, {})
        spec = pipeline(broker.bootstrap, "orders")
        watch = watch_over(spec)
        asked = asking(spec, watch, every_s=0.05)
        asked.__enter__()
        assert wait(watch, lambda status: status.lag == 0).state is State.RUNNING
    try:
        status = wait(watch, lambda status: status.state is State.WAITING)
    finally:
        asked.__exit__(None, None, None)
    assert status.reason.startswith(f"source orders: no broker answers at {broker.bootstrap}")
    assert (status.lag, status.sources["orders"].lag, status.sources["orders"].trouble) == (None, None, status.reason)


def test_a_topic_that_is_not_there_is_no_topic_without_lag(broker: EmbeddedBroker) -> None:
    spec = pipeline(broker.bootstrap, "orders", "refunds")
    watch = watch_over(spec)
    with asking(spec, watch, every_s=0.05):
        status = wait(watch, lambda status: len(status.sources) == 2)
    assert (status.state, status.lag, status.sources["orders"].lag) == (State.WAITING, None, 0)
    assert status.reason.startswith("source refunds: no topic 'refunds'")
