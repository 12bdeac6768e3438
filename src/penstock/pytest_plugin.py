"""The fixtures `penstock_broker` and `penstock_fresh_broker`, for every pytest beside which Penstock is installed.

pytest imports this at each of its starts, whoever uses the fixtures or not. So it imports nothing until one is used,
and is no part of `penstock.testing`, with which the broker comes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import EmbeddedBroker


@pytest.fixture(scope="session")
def penstock_broker() -> "Iterator[EmbeddedBroker]":
    """A message broker for Kafka clients at `penstock_broker.bootstrap`, one for all tests of the session."""
    from penstock.testing import embedded_broker

    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def penstock_fresh_broker() -> "Iterator[EmbeddedBroker]":
    """The same for one test alone: without topics, and free to be stopped, killed and started again."""
    from penstock.testing import embedded_broker

    with embedded_broker() as broker:
        yield broker
