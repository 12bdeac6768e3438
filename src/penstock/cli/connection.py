"""Which server a command talks to, and the client it talks through: librdkafka, as any other Kafka program would.

The order: --server, $PENSTOCK_SERVER, the context (--context, $PENSTOCK_CONTEXT, or the current one in the file), then
127.0.0.1:9092. A context named with --context wins over $PENSTOCK_SERVER and lends its properties to --server; one that
was not asked for keeps them, as they may be the credentials for another server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.contexts import DEFAULT_SERVER, Contexts, complete_context
from penstock.cli.failure import UNREACHABLE, USAGE, CommandError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Refused(CommandError):
    """The server said no; `name` is Kafka's name of the reason."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(frozen=True, slots=True)
class Server:
    """An address, where it was said, and the client properties that go with it."""

    address: str
    origin: str
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0

    def admin(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient

        return self._connect(AdminClient, {})

    def producer(self, properties: Mapping[str, object] | None = None) -> "Producer":
        from confluent_kafka import Producer

        return self._connect(Producer, properties or {})

    def consumer(self, properties: Mapping[str, object] | None = None) -> "Consumer":
        from confluent_kafka import Consumer

        # librdkafka wants a group's name even where partitions are assigned by hand and nothing is committed.
        alone = {"group.id": "penstock-cli", "enable.auto.commit": False, "enable.auto.offset.store": False}
        return self._connect(Consumer, alone | dict(properties or {}))

    def client_properties(self, properties: Mapping[str, object] | None = None) -> dict[str, Any]:
        quiet = {"log_level": 0, "socket.keepalive.enable": True, "client.id": "penstock-cli"}
        return quiet | dict(properties or {}) | dict(self.properties) | {"bootstrap.servers": self.address}

    def unreachable(self, reason: str = "") -> CommandError:
        reason = reason or f"no answer within {self.timeout_s:g} s"
        return CommandError(
            f"no server at {self.address} (from {self.origin}): {reason}; "
            "is it running? Name another with --server HOST:PORT",
            code=UNREACHABLE,
        )

    def wait(self, future: "Future[T]") -> T:
        """The result of an admin call. Raises `CommandError`."""
        from concurrent.futures import TimeoutError as TooLate

        from confluent_kafka import KafkaException

        try:
            return future.result(self.timeout_s + 1)
        except TooLate:
            raise self._no_answer() from None
        except KafkaException as error:
            raise self.explain(error.args[0]) from None

    def run(self, call: Callable[[], T]) -> T:
        """The result of a call that blocks in librdkafka, where no Ctrl+C is heard. Raises `CommandError`."""
        import threading
        from concurrent.futures import Future

        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return self.wait(future)

    def explain(self, error: "KafkaError") -> CommandError:
        """A client's error as ours: unreachable servers apart from refusals."""
        if error.name() in _UNREACHABLE:
            return self._no_answer()
        if error.str() == _WITHOUT_A_REASON and self._is_store_away():
            return Refused(_STORE_AWAY, error.name())
        return Refused(error.str(), error.name())

    def _no_answer(self) -> CommandError:
        """For a server that could be connected to, and gave no answer in time: brokers may wait for another one."""
        return CommandError(f"{self.address}: {_STORE_AWAY}") if self._is_store_away() else self.unreachable()

    def _is_store_away(self) -> bool:
        from penstock.cli.cluster_view import View

        try:
            with View(self) as view:
                return view.is_store_away()
        except CommandError:
            return False

    def _connect(self, kind: Callable[[dict[str, Any]], T], properties: Mapping[str, object]) -> T:
        from confluent_kafka import KafkaException

        self._probe()
        try:
            return kind(self.client_properties(properties))
        except KafkaException as error:
            raise CommandError(f"{error.args[0].str()} (-X sets client properties)", code=USAGE) from None

    def _probe(self) -> None:
        """Raise at once, with the reason, where librdkafka would try again in silence until the timeout."""
        import socket
        import time

        deadline = time.monotonic() + self.timeout_s
        reasons = []
        words = self.address.split(",")
        for at, word in enumerate(words):
            try:
                left = max(deadline - time.monotonic(), 0.001) / (len(words) - at)  # one that swallows packets is one
                socket.create_connection(split_address(word.strip()), timeout=left).close()
            except TimeoutError:
                reasons.append("")
            except (OSError, UnicodeError) as error:
                reasons.append(getattr(error, "strerror", None) or str(error))
            else:
                return
        raise self.unreachable(", ".join(dict.fromkeys(filter(None, reasons))))


_WITHOUT_A_REASON = "Broker: Leader not available"
_STORE_AWAY = (
    "a broker answers, and the cluster's metadata store (etcd) does not answer it: nothing can be created or changed "
    "until most members of the store run; 'penstock cluster status' looks"
)
_UNREACHABLE = frozenset({"_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT", "REQUEST_TIMED_OUT"})


def split_address(word: str) -> tuple[str, int]:
    host, colon, port = word.rpartition("://")[2].rpartition(":")
    if not colon:
        return port, 9092
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"{word!r} is no HOST:PORT", code=USAGE)
    return host.strip("[]"), int(port)


def server_options(command: F) -> F:
    """Adds --server, --context, -X and --timeout; the command gets them as one `server: Server`."""
    import functools

    @click.option("-s", "--server", "address", metavar="HOST:PORT", help="The server, or several, with commas.")
    @click.option(
        "--context",
        "context_name",
        metavar="NAME",
        shell_complete=complete_context,
        help="A server named with 'penstock context add'.",
    )
    @click.option(
        "-X", "properties", metavar="KEY=VALUE", multiple=True, help="A librdkafka property, such as security.protocol."
    )
    @click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=click.FloatRange(0, 3600, min_open=True),
        default=10.0,
        show_default=True,
        help="How long to wait for an answer.",
    )
    @functools.wraps(command)
    def with_server(
        *args: Any,
        address: str | None,
        context_name: str | None,
        properties: Sequence[str],
        timeout_s: float,
        **kwargs: Any,
    ) -> Any:
        server = find_server(address, context_name, read_properties(properties), timeout_s)
        return command(*args, server=server, **kwargs)

    return with_server  # type: ignore[return-value]  # the wrapper takes what click hands it


def find_server(
    address: str | None = None,
    context_name: str | None = None,
    properties: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
    *,
    env: Mapping[str, str] | None = None,
) -> Server:
    """Decide by flags, environment and contexts. Raises `CommandError` for a context that does not exist."""
    import os

    env = os.environ if env is None else env
    given = properties or {}
    found = None
    if address == "":
        raise CommandError("--server is empty; say HOST:PORT, or leave it out", code=USAGE)
    if address is not None:
        found = address, "--server"
    elif env.get("PENSTOCK_SERVER") and not context_name:
        found = env["PENSTOCK_SERVER"], "$PENSTOCK_SERVER"
    if found and not context_name:
        return Server(*found, given, timeout_s)
    contexts = Contexts.load(env)
    named = context_name or env.get("PENSTOCK_CONTEXT") or contexts.current
    if named is None:
        return Server(DEFAULT_SERVER, "the default", given, timeout_s)
    context = contexts.get(named)
    return Server(*(found or (context.server, f"context {named}")), {**context.properties, **given}, timeout_s)


def read_properties(words: Sequence[str]) -> dict[str, str]:
    """`key=value` words. Raises `CommandError`."""
    read = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise CommandError(f"{word!r} is no KEY=VALUE", code=USAGE)
        read[key.strip()] = value
    return read


class TopicName(click.ParamType[str]):
    """A topic's name, completed by asking the server."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        given = ctx.params
        try:
            properties = read_properties(given.get("properties") or ())
            server = find_server(given.get("address"), given.get("context_name"), properties, timeout_s=2.0)
            names = server.admin().list_topics(timeout=2.0).topics
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
