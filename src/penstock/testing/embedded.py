"""A broker inside your own test process: a free port, a temporary directory, gone when the block ends.

    from penstock.testing import embedded_broker

    def test_orders():
        with embedded_broker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs on an event loop in a thread of its own, so it serves synchronous and asynchronous tests alike.
"""

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Defaults, Listeners

_START_S = 30.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class EmbeddedBroker:
    """Where a running broker is to be found."""

    bootstrap: str
    """`host:port` for `bootstrap.servers`."""
    http: str
    """Base URL of health and metrics."""
    data_dir: Path


@contextmanager
def embedded_broker(
    data_dir: str | Path | None = None, *, topic_defaults: Mapping[str, str] | None = None, partitions: int = 6
) -> Iterator[EmbeddedBroker]:
    """Run a broker for the length of the block.

    Args:
        data_dir: where the data stays; a temporary directory, removed afterwards, if not given.
        topic_defaults: topic settings such as `{"flush": "os"}`.
        partitions: partitions of topics created by use.

    Raises:
        StartupError: the broker could not start; the text says why.
    """
    if data_dir is None:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-") as made,
            embedded_broker(made, topic_defaults=topic_defaults, partitions=partitions) as broker,
        ):
            yield broker
        return
    free = Address("127.0.0.1", 0)
    config = Config(
        data_dir=Path(data_dir),
        listeners=Listeners(kafka=free, http=free),
        defaults=Defaults(topic=MappingProxyType(dict(topic_defaults or {})), partitions=partitions),
    )
    host = _Host(config)
    try:
        yield host.start()
    finally:
        host.stop()


class _Host:
    """The thread and loop a broker lives in."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock", daemon=True)
        self._broker: Broker | None = None
        self._stopping: asyncio.Task[None] | None = None

    def start(self) -> EmbeddedBroker:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_S)
        assert self._broker is not None
        kafka, http = self._broker.kafka_address, self._broker.http_address
        return EmbeddedBroker(f"{kafka[0]}:{kafka[1]}", f"http://{http[0]}:{http[1]}", self._config.data_dir)

    async def _start(self) -> None:
        self._broker = Broker(self._config)
        await self._broker.start()
        # A broker that must not go on stops listening, so that a test sees errors instead of waiting for ever.
        self._broker.failed.add_done_callback(self._failed)

    def _failed(self, failed: "asyncio.Future[None]") -> None:
        assert self._broker is not None
        if not failed.cancelled() and failed.exception() is not None:
            self._stopping = self._loop.create_task(self._broker.stop())

    def stop(self) -> None:
        if self._broker is not None:
            asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()
