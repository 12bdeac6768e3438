"""A broker all client tests share."""

import socket
import uuid
from collections.abc import Iterator

import pytest

from penstock.client.cluster import Cluster
from penstock.client.settings import Settings
from penstock.testing import EmbeddedBroker, embedded_broker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """Shared: a test keeps to topics of its own."""
    with embedded_broker(topic_defaults={"flush": "os"}) as running:
        yield running


@pytest.fixture
def settings(broker: EmbeddedBroker) -> Settings:
    return Settings(broker.bootstrap)


@pytest.fixture
def cluster(settings: Settings) -> Iterator[Cluster]:
    with Cluster(settings) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """A name no other test has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections: bound, so nobody else gets it, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
