"""A broker inside your own test process: a free port, a temporary directory, gone when the block ends.

    from confluent_kafka import Producer
    from penstock.testing import embedded_broker

    def test_orders():
        with embedded_broker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs on an event loop in a thread of its own, so it serves synchronous and asynchronous tests alike.
"""

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from penstock.errors import Code, PenstockError, StartupError
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Defaults, Listeners
from penstock.testing.held_port import HOST, HeldPort

_PATIENCE_S = 30.0
T = TypeVar("T")


@contextmanager
def embedded_broker(
    data_dir: str | Path | None = None,
    *,
    port: int = 0,
    topic_defaults: Mapping[str, str] | None = None,
    partitions: int = 6,
) -> "Iterator[EmbeddedBroker]":
    """Run a broker for the length of the block.

    Args:
        data_dir: where the data stays; a temporary directory, removed afterwards, if not given.
        port: where Kafka clients find it on 127.0.0.1; a free one if not given.
        topic_defaults: topic settings such as `{"flush": "os"}`.
        partitions: partitions of topics created without saying how many.

    Raises:
        StartupError: the broker could not start; the text says why.
    """
    with ExitStack() as held:
        kafka, http = HeldPort(port), HeldPort()
        held.callback(kafka.release)
        held.callback(http.release)
        if data_dir is None:
            data_dir = held.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
        thread = _LoopThread()
        held.callback(thread.close)
        config = Config(
            data_dir=Path(data_dir),
            listeners=Listeners(kafka=Address(HOST, kafka.number), http=Address(HOST, http.number)),
            defaults=Defaults(topic=MappingProxyType(dict(topic_defaults or {})), partitions=partitions),
        )
        broker = EmbeddedBroker(config, thread)
        broker.start()
        held.callback(broker.stop)
        yield broker


class _LoopThread:
    """An event loop in a thread of its own, for callers in any other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()


class EmbeddedBroker:
    """A broker in a thread of this process; `embedded_broker` makes it.

    It is called from any thread but its own, and a call returns when it is done: in a coroutine, `stop`, `kill`,
    `start` and `restart` belong into `asyncio.to_thread`, or clients in that loop stand still meanwhile.
    """

    def __init__(self, config: Config, thread: _LoopThread) -> None:
        self._config = config
        self._thread = thread
        self._broker: Broker | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`; the same after a restart."""
        return str(self._config.listeners.kafka)

    @property
    def http(self) -> str:
        """Base URL of health and metrics; the same after a restart."""
        return f"http://{self._config.listeners.http}"

    @property
    def data_dir(self) -> Path:
        return self._config.data_dir

    def create_topic(self, name: str, partitions: int | None = None, **settings: object) -> str:
        """Make a topic, ready to be written to when this returns.

        Args:
            name: of the topic.
            partitions: how many; as many as the broker gives by default, if not given.
            settings: the topic's, with `_` for each dot: `cleanup_policy="compact"`, `retention_ms=60_000`.

        Returns:
            Its name.

        Raises:
            PenstockError: there is one of this name, a name or setting is wrong, or the broker is stopped.
        """
        if self._broker is None:
            raise PenstockError(Code.NOT_AVAILABLE, f"the broker at {self.bootstrap} is stopped; start() it first")
        named = {key.replace("_", "."): _format_setting(value) for key, value in settings.items()}
        try:
            self._thread.run(self._broker.create_topic(name, -1 if partitions is None else partitions, named))
        except PenstockError as error:
            if error.code is not Code.TOPIC_EXISTS:
                raise
            way_out = "choose another name, or give the test a broker of its own (the fixture penstock_fresh_broker)"
            raise PenstockError(error.code, f"{error}; {way_out}") from None
        return name

    def start(self) -> None:
        """Start it again, on the same port and directory. Does nothing when it runs.

        Raises:
            StartupError: it could not start; the text says why.
        """
        if self._broker is not None:
            return
        try:
            self._broker = self._thread.run(self._started())
        except OSError as error:  # a TimeoutError is one
            why = error.strerror or str(error) or f"not ready after {_PATIENCE_S:g} s"
            raise StartupError(
                f"no broker can start on directory {self.data_dir}: {why}; name another, or none for a temporary one"
            ) from error

    def stop(self) -> None:
        """Stop it as SIGTERM does: everything synced, clients disconnected. Does nothing when it is stopped."""
        self._end(cleanly=True)

    def kill(self) -> None:
        """End it as kill -9 does: no answer to what is under way, and the next start has to recover the logs."""
        self._end(cleanly=False)

    def restart(self) -> None:
        """Stop it and start it again. Raises `StartupError` like `start`."""
        self.stop()
        self.start()

    def _end(self, *, cleanly: bool) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            self._thread.run(self._ended(broker, cleanly=cleanly))

    async def _ended(self, broker: Broker, *, cleanly: bool) -> None:
        await broker.stop(cleanly=cleanly)
        if self._stopping is not None:
            await self._stopping

    async def _started(self) -> Broker:
        broker = Broker(self._config)
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        # A broker that must not go on stops listening, so that a test sees errors instead of waiting for ever.
        broker.failed.add_done_callback(lambda failed: self._failed(broker, failed))
        return broker

    def _failed(self, broker: Broker, failed: "asyncio.Future[None]") -> None:
        if not failed.cancelled() and failed.exception() is not None:
            self._stopping = asyncio.get_running_loop().create_task(broker.stop())


def _format_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
