"""Penstock's own request over the network: a verb and JSON, for what Kafka has no API for."""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.cli import wire
from penstock.cli.connection import Server
from penstock.cli.failure import UNREACHABLE, CommandError

if TYPE_CHECKING:
    from penstock.security.rules import Rule

_API: Final = "penstock_verb"
Fields = dict[str, Any]


class NotPenstock(CommandError):
    """The server hangs up at this request, as any but a Penstock does."""


class Led(NamedTuple):
    """Who leads a topic.

    Attributes:
        partitions: all of them.
        leaders: where to ask about those that have a leader now; None: where the server was named.
    """

    partitions: list[int]
    leaders: dict[int, wire.Address | None]


class Verbs:
    """Asked of any broker of a server, or of one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cluster = wire.Cluster(server, any_security=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()

    def ask(self, what: str, verb: str, /, *, at: wire.Address | None = None, **fields: Any) -> Any:
        """The answer's document. Fields that are None are left out.

        Args:
            what: begins the sentence where it is refused.

        Raises:
            CommandError: `Refused` by the server; `NotPenstock`.
        """
        import orjson

        document = orjson.dumps({name: value for name, value in fields.items() if value is not None})
        began = time.monotonic()
        try:
            answer = self._cluster.ask(at, _API, verb=verb, document=document)
        except CommandError as error:
            in_time = time.monotonic() - began < self._server.timeout_s
            if error.code == UNREACHABLE and in_time and self._hangs_up(at):
                raise NotPenstock(
                    f"{what}: the server at {self._server.address} does not know this request; it is not a Penstock, "
                    "or an older release"
                ) from None
            raise
        way_out = f"; {answer.help}" if answer.help and not wire.is_denied(answer.error_code) else ""
        wire.check(answer.error_code, what, f"{answer.error_message or ''}{way_out}" or None)
        return orjson.loads(answer.document)

    def rows(self, what: str, verb: str, /, by: str, **fields: Any) -> Iterator[Fields]:
        """All rows of a list that comes in pages; `by` is the field that orders them."""
        after = None
        while True:
            page = self.ask(what, verb, after=after, **fields)
            yield from page["rows"]
            if not page["more"]:
                return
            after = page["rows"][-1][by]

    def ask_all(self, what: str, verb: str) -> tuple[list[Fields], list[int]]:
        """What each broker of the cluster answers, and which ones do not, also those that do not run.

        Raises `CommandError`.
        """
        rows = self._cluster.ask(None, "describe_cluster", include_fenced_brokers=True, endpoint_type=1).brokers
        told, silent = [], []
        for row in sorted(rows, key=lambda row: row.broker_id):
            at = None if len(rows) == 1 else (row.host, row.port)  # the only one: where the server was named
            try:
                if row.get("is_fenced", False):
                    silent.append(row.broker_id)
                else:
                    told.append(self.ask(what, verb, at=at))
            except CommandError as error:
                if error.code != UNREACHABLE:
                    raise
                silent.append(row.broker_id)
        if not told:
            raise CommandError(f"{what}: no broker answers", code=UNREACHABLE)
        return told, silent

    def leaders(self, topic: str) -> Led:
        """Raises `CommandError`."""
        answer = self._cluster.ask(None, "metadata", topics=[{"name": topic}], allow_auto_topic_creation=False)
        (found,) = answer.topics
        wire.check(found.error_code, f"topic {topic!r}")
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        is_alone = len(brokers) == 1
        return Led(
            sorted(each.partition_index for each in found.partitions),
            {
                each.partition_index: None if is_alone else brokers[each.leader_id]
                for each in found.partitions
                if each.leader_id in brokers
            },
        )

    def _hangs_up(self, at: wire.Address | None) -> bool:
        """Whether it answers other questions, and not even that it does not know a verb."""
        try:
            self._cluster.ask(at, "metadata", topics=[])
        except CommandError:
            return False
        try:
            self._cluster.ask(at, _API, verb="", document=b"{}")
        except CommandError:
            return True
        return False


def rule_of(fields: Mapping[str, str]) -> "Rule":
    """What a server says of a rule. Raises `CommandError`."""
    from penstock.engine.access import Kind, Operation
    from penstock.security.rules import Effect, Pattern, Rule

    try:
        return Rule(
            fields["principal"],
            fields["host"],
            Operation(fields["operation"]),
            Kind(fields["kind"]),
            Pattern(fields["pattern"]),
            fields["name"],
            Effect(fields["effect"]),
        )
    except ValueError as error:
        raise CommandError(f"the server has a rule that is not known here ({error}); use its release") from None


def fields_of(rule: "Rule") -> dict[str, str]:
    """A rule as servers read it."""
    return {name: str(value) for name, value in rule._asdict().items()}


def format_moment(moment_ms: int | None) -> str | None:
    """In this machine's time, to the minute."""
    if moment_ms is None:
        return None
    try:
        return datetime.fromtimestamp(moment_ms / 1000).isoformat(" ", "minutes")
    except (ValueError, OverflowError, OSError):
        return str(moment_ms)
