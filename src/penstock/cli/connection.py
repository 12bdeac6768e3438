"""Which server a command talks to, and the client it talks through: librdkafka, as any other Kafka program would.

The order: --server, $PENSTOCK_SERVER, the context (--context, $PENSTOCK_CONTEXT, or the current one in the file), then
127.0.0.1:9092. A context named with --context wins over $PENSTOCK_SERVER and lends its properties to --server; one that
was not asked for keeps them, as they may be the credentials for another server. The file of --command-config counts as
words of the command line do.

Who we are is asked before librdkafka is: that would try a wrong password again in silence until the time is up.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli import login
from penstock.cli.contexts import DEFAULT_SERVER, Contexts, complete_context
from penstock.cli.failure import UNREACHABLE, USAGE, CommandError
from penstock.client.credentials import PASSWORD_FILE, PROTOCOL, USERNAME, overlay

if TYPE_CHECKING:
    from concurrent.futures import Future
    from logging import Logger

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
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0

    @property
    def principal(self) -> str:
        """Who we are there, such as `User:alice`."""
        return login.principal(self.properties)

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
        quiet = {"log_level": 0, "logger": _silent(), "socket.keepalive.enable": True, "client.id": "penstock-cli"}
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
        return Refused(self.explain_refusal(error.name(), error.str()), error.name())

    def explain_refusal(self, name: str, told: str) -> str:
        """What a server said, and the way out where it was that we may not."""
        if name.endswith("_AUTHORIZATION_FAILED"):
            if " may not " in told:
                return f"{told} ('penstock acl explain' tells the rule)"
            way_out = "'penstock acl explain' tells the rule, 'penstock acl add' makes one"
            return f"{self.principal} may not do that ({told.removeprefix('Broker: ').lower()}); {way_out}"
        return told

    def _no_answer(self) -> CommandError:
        """For a server that could be connected to, and gave no answer in time: brokers may wait for another one."""
        if self.wants_login():
            return self.no_login()
        return CommandError(f"{self.address}: {_STORE_AWAY}") if self._is_store_away() else self.unreachable()

    def no_login(self) -> CommandError:
        import os

        return CommandError(
            f"the server at {self.address} (from {self.origin}) answers nobody who does not log in: "
            f"-X {PROTOCOL}=SASL_PLAINTEXT -X sasl.mechanism=SCRAM-SHA-256 -X {USERNAME}=NAME "
            f"-X {PASSWORD_FILE}=FILE; 'penstock context add' keeps them{login.tell_api_key(os.environ)}"
        )

    def wants_login(self) -> bool:
        """Whether it tells us its versions and hangs up at the first question, as Kafka's brokers do then."""
        if self.properties.get(PROTOCOL, "PLAINTEXT").strip().upper() != "PLAINTEXT":
            return False
        from penstock.client.connection import Connection
        from penstock.client.errors import ClientError, Unreachable
        from penstock.client.settings import Settings

        try:
            settings = Settings(self.address, timeout_s=min(self.timeout_s, _LOOK_WITHIN_S), client_id="penstock-cli")
            with closing(Connection(settings, settings.addresses()[0])) as connection:
                connection.version("sasl_handshake")
                try:
                    connection.call("metadata", topics=[])
                except Unreachable as error:
                    return not isinstance(error.__cause__, TimeoutError)
        except ClientError:
            return False
        return False

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
                place = split_address(word.strip())
                socket.create_connection(place, timeout=left).close()
            except TimeoutError:
                reasons.append("")
            except (OSError, UnicodeError) as error:
                reasons.append(getattr(error, "strerror", None) or str(error))
            else:
                self._log_in(place, max(deadline - time.monotonic(), 0.001))
                return
        raise self.unreachable(", ".join(dict.fromkeys(filter(None, reasons))))

    def _log_in(self, place: tuple[str, int], timeout_s: float) -> None:
        """Raise at once where the server does not let us in; whatever else there is, librdkafka meets it as well."""
        if not self.properties.get(PROTOCOL, "").strip().upper().startswith("SASL"):
            return
        from penstock.client.connection import Connection
        from penstock.client.errors import ClientError, Unreachable
        from penstock.client.settings import Settings

        security = login.security_of(self.properties)
        if security is None:
            return
        try:
            Connection(Settings(self.address, security, timeout_s=timeout_s), place).close()
        except Unreachable:
            return
        except ClientError as error:
            raise CommandError(login.explain(error, self.properties)) from None


_LOOK_WITHIN_S = 3.0
_WITHOUT_A_REASON = "Broker: Leader not available"
_STORE_AWAY = (
    "a broker answers, and the cluster's metadata store (etcd) does not answer it: nothing can be created or changed "
    "until most members of the store run; 'penstock cluster status' looks"
)
_UNREACHABLE = frozenset({"_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT", "REQUEST_TIMED_OUT"})


def _silent() -> "Logger":
    """What goes wrong is in answers; librdkafka would say it once more, over the line that the command ends with."""
    import logging

    logger = logging.Logger("librdkafka")
    logger.addHandler(logging.NullHandler())
    return logger


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
        "--command-config",
        "properties_file",
        metavar="FILE",
        help="Kafka client properties: servers and security, no passwords in -X.",
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
        properties_file: str | None,
        timeout_s: float,
        **kwargs: Any,
    ) -> Any:
        server = server_of(address, context_name, properties, properties_file, timeout_s)
        return command(*args, server=server, **kwargs)

    return with_server  # type: ignore[return-value]  # the wrapper takes what click hands it


def server_of(
    address: str | None,
    context_name: str | None,
    properties: Sequence[str],
    properties_file: str | None,
    timeout_s: float = 10.0,
) -> Server:
    """What the words of `server_options` mean, ready to log in. Raises `CommandError`."""
    import os

    given = read_properties(properties)
    login.refuse_secrets(given)
    origin = "--server"
    if properties_file is not None:
        given = overlay(login.read_properties_file(properties_file), given)
        named = given.pop("bootstrap.servers", None)
        if address is None and named is not None:
            address, origin = named, properties_file
    server = find_server(address, context_name, given, timeout_s)
    if server.origin == "--server":
        server = replace(server, origin=origin)
    return replace(server, properties=login.complete(server.properties, os.environ))


def server_of_words(words: Mapping[str, Any]) -> Server:
    """The same while a shell completes a word; nobody waits long then."""
    return server_of(
        words.get("address"),
        words.get("context_name"),
        words.get("properties") or (),
        words.get("properties_file"),
        timeout_s=2.0,
    )


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
    return Server(*(found or (context.server, f"context {named}")), overlay(context.properties, given), timeout_s)


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

        try:
            names = server_of_words(ctx.params).admin().list_topics(timeout=2.0).topics
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
