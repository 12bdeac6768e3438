"""`penstock.client` in the words of the command line, for the few APIs that librdkafka does not have.

It logs in as the server's properties say. No TLS unless a command says otherwise: it says so before it connects.
Everything else goes through librdkafka (docs/adr/0007).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.cli import login
from penstock.cli.connection import Refused, Server, split_address
from penstock.cli.failure import UNREACHABLE, USAGE, CommandError
from penstock.client import errors
from penstock.client.cluster import GROUP, TRANSACTION
from penstock.client.connection import Connection
from penstock.client.errors import error_name
from penstock.client.security import parse_security
from penstock.client.settings import Address, Settings

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

__all__ = ["GROUP", "TRANSACTION", "Address", "Cluster", "check", "error_name", "is_denied", "is_plaintext"]

_RETRIABLE: Final = frozenset({14, 15, 16, 51})  # a coordinator that loads or moves, a transaction about to end
_RETRY_S: Final = 0.1


class Cluster:
    """The brokers behind a server's address, each connected when it is first asked."""

    def __init__(self, server: Server, *, any_security: bool = False) -> None:
        """
        Args:
            any_security: TLS too, as the server's properties say.
        """
        self._server = server
        self._settings = Settings(server.address, timeout_s=server.timeout_s, client_id="penstock-cli")
        self._open: dict[tuple[Address, float], Connection] = {}
        self._learned: list[Address] = []
        self._last: Address | None = None
        self._failed_at: dict[Address, float] = {}
        if not any_security and not is_plaintext(server):
            told = f"security.protocol={server.properties['security.protocol']}"
            raise CommandError(f"{told}: what librdkafka cannot ask is asked in plaintext only", code=USAGE)
        try:
            self._settings = replace(self._settings, security=parse_security(server.properties))
        except errors.ClientError as error:
            raise CommandError(str(error), code=USAGE) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open.values():
            connection.close()

    def learn(self, addresses: Iterable[Address]) -> None:
        """Brokers that may be asked as well when none of those answers that the server was named with."""
        self._learned = list(addresses)

    def brokers(self) -> dict[int, Address]:
        return {each.node_id: (each.host, each.port) for each in self.ask(None, "metadata", topics=[]).brokers}

    def find_leader(self, topic: str, partition: int) -> Address:
        """The partition's leader. Raises `CommandError` where the topic, the partition or its leader is missing."""
        answer = self.ask(None, "metadata", topics=[{"name": topic}], allow_auto_topic_creation=False)
        (found,) = answer.topics
        check(found.error_code, f"topic {topic!r}")
        leaders = {each.partition_index: each.leader_id for each in found.partitions}
        if partition not in leaders:
            raise CommandError(f"topic {topic!r} has no partition {partition}; it has 0 to {max(leaders)}")
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        if leaders[partition] not in brokers:
            raise CommandError(f"partition {partition} of topic {topic!r} has no leader now; try again")
        return brokers[leaders[partition]]

    def find_coordinator(self, kind: int, name: str) -> Address:
        def find() -> Any:
            answer = self.ask(None, "find_coordinator", key=name, coordinator_keys=[name], key_type=kind)
            return answer.get("coordinators", [answer])[0]  # several names a question from version 4 on

        found = self.retry(find)
        check(found.error_code, f"{'group' if kind == GROUP else 'transactional id'} {name!r}")
        return found.host, found.port

    def retry(self, ask: "Callable[[], Message]") -> "Message":
        """The first answer whose `error_code` is not one that passes, or the last before the time is up."""
        deadline = time.monotonic() + self._server.timeout_s
        while (answer := ask()).error_code in _RETRIABLE and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        return answer

    def ask(self, address: Address | None, api: str, **values: Any) -> "Message":
        """Ask one broker, or without an address any of those the server was named with."""
        return self._ask(address, api, values, self._server.timeout_s)

    def ask_briefly(self, within_s: float, api: str, **values: Any) -> "Message":
        """Ask any broker, each for no longer than this, nor than the server's timeout."""
        return self._ask(None, api, values, min(within_s, self._server.timeout_s))

    def _ask(self, address: Address | None, api: str, values: Mapping[str, Any], timeout_s: float) -> "Message":
        reasons = []
        places = [split_address(word.strip()) for word in self._server.address.split(",")]
        for place in self._in_order([*places, *self._learned]) if address is None else [address]:
            try:
                answer = self._connect(place, timeout_s).call(api, **values)
            except errors.Unreachable as error:
                self._failed_at[place] = time.monotonic()
                late = isinstance(error.__cause__, TimeoutError)
                reasons += [] if late else [each.reason for each in error.failures]
            except errors.ClientError as error:
                raise CommandError(login.explain(error, self._server.properties)) from None
            else:
                self._failed_at.pop(place, None)
                self._last = place if address is None else self._last
                return answer
        told = ", ".join(dict.fromkeys(reasons)) or f"no answer within {timeout_s:g} s"
        if reasons and self._server.wants_login():
            raise self._server.no_login()
        if address is None or address in places:
            raise self._server.unreachable(told)
        named = f"no broker at {address[0]}:{address[1]}, which the server named"
        raise CommandError(f"{named}: {told}", code=UNREACHABLE)

    def _in_order(self, places: Iterable[Address]) -> list[Address]:
        """The one that answered last first; those that did not answer at the end, as each costs a whole timeout."""
        return sorted(dict.fromkeys(places), key=lambda each: (self._failed_at.get(each, 0.0), each != self._last))

    def _connect(self, place: Address, timeout_s: float) -> Connection:
        found = self._open.get((place, timeout_s))
        if found is None or not found.usable:
            settings = replace(self._settings, timeout_s=timeout_s)
            found = self._open[place, timeout_s] = Connection(settings, place)
        return found


def is_plaintext(server: Server) -> bool:
    """Without TLS; whether somebody logs in is another question."""
    return server.properties.get("security.protocol", "plaintext").lower() in ("plaintext", "sasl_plaintext")


def is_denied(code: int) -> bool:
    """Whether the error says that somebody may not do that."""
    return code != 0 and error_name(code).endswith("_AUTHORIZATION_FAILED")


def check(code: int, what: str, text: str | None = None) -> None:
    """Raise `Refused` for an error code, in the server's words if it has any, else in Kafka's."""
    if code:
        name = error_name(code)
        told = text or name.lower().replace("_", " ")
        way_out = " ('penstock acl explain' tells the rule)" if name.endswith("_AUTHORIZATION_FAILED") else ""
        raise Refused(f"{what}: {told}{way_out}", name)
