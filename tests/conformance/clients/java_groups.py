"""The Java client's consumers as members of groups, and its admin side of groups, in the JVM of the Java client."""

import base64
import itertools
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from .client import DEADLINE_S
from .groups import (
    HEARTBEAT_MS,
    SESSION_MS,
    Change,
    Committed,
    Described,
    GroupAdmin,
    Listing,
    Member,
    Options,
    Place,
    Seen,
)
from .java import JavaClient

ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
_numbers = itertools.count()


class JavaMember(Member):
    def __init__(
        self, client: JavaClient, options: Options, *, protocol: str = "classic", assignor: str = "range"
    ) -> None:
        self.options = options
        self.name = f"member {next(_numbers)}"
        self._client = client
        self._changes: list[Change] = []
        self._received: list[Seen] = []
        self._turn = threading.Lock()
        self._left = False
        config = {
            "group.id": options.group,
            "client.id": options.client_id,
            "group.protocol": protocol,
            "enable.auto.commit": str(options.auto_commit_ms is not None).lower(),
            "auto.commit.interval.ms": str(options.auto_commit_ms or 5000),
            "auto.offset.reset": options.reset,
            "isolation.level": options.isolation,
            "default.api.timeout.ms": str(int(DEADLINE_S * 1000)),
            "fetch.max.wait.ms": "100",
            "metadata.max.age.ms": "1000",
        }
        if protocol == "classic":
            config |= {
                "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{ASSIGNORS[assignor]}",
                "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS),
            }
        if options.instance is not None:
            config["group.instance.id"] = options.instance
        self._client.ask(
            "join",
            member=self.name,
            config=config,
            topics=options.topics,
            places=options.places,
            pattern=options.pattern,
        )

    def _look(self) -> frozenset[Place]:
        with self._turn:
            if self._left:
                return frozenset()
            counts = {"changes": len(self._changes), "received": len(self._received)}
            found = self._client.ask("member", member=self.name, **counts)
            assert found["failure"] is None, f"a member of {self.options.group} failed: {found['failure']}"
            self._changes += [Change(kind, _places(places)) for kind, places in found["changes"]]
            self._received += [
                Seen((topic, partition), offset, base64.b64decode(value))
                for topic, partition, offset, value in found["received"]
            ]
        return _places(found["assigned"])

    @property
    def assigned(self) -> frozenset[Place]:
        return self._look()

    @property
    def changes(self) -> list[Change]:
        self._look()
        return list(self._changes)

    @property
    def received(self) -> list[Seen]:
        self._look()
        return list(self._received)

    def start_commit(self, offsets: Mapping[Place, Committed] | None) -> "Future[None]":
        packed = None if offsets is None else [(*place, *each) for place, each in offsets.items()]
        return self._start("commit", lambda _found: None, offsets=packed)

    def start_committed(self, places: Iterable[Place]) -> "Future[dict[Place, Committed]]":
        return self._start("committed", lambda found: _offsets(found["offsets"]), places=list(places))

    def seek(self, place: Place, offset: int) -> None:
        self._start("seek", lambda _found: None, places=[place], offset=offset).result(DEADLINE_S)

    def leave(self) -> None:
        self._leave(stays=False)

    def crash(self) -> None:
        """Close the connections without a word to the coordinator."""
        self._leave(stays=True)

    def _leave(self, *, stays: bool) -> None:
        self._look()
        with self._turn:
            self._left = True
            self._client.ask("leave", member=self.name, stays=stays)

    def _start(self, verb: str, convert: Any, **details: Any) -> "Future[Any]":
        """The JVM takes one command at a time, so what may block is started there and asked after."""
        ticket = self._client.ask(verb, member=self.name, **details)["ticket"]
        future: Future[Any] = Future()

        def wait() -> None:
            pause = threading.Event()
            try:
                while not (found := self._client.ask("ticket", ticket=ticket))["done"]:
                    pause.wait(0.01)
                future.set_result(convert(found))
            except BaseException as failure:  # noqa: BLE001 the asker gets it
                future.set_exception(failure)

        threading.Thread(target=wait, daemon=True).start()
        return future


def _places(found: list[list[Any]]) -> frozenset[Place]:
    return frozenset((topic, partition) for topic, partition in found)


def _offsets(found: list[list[Any]]) -> dict[Place, Committed]:
    return {(topic, partition): Committed(offset, metadata) for topic, partition, offset, metadata in found}


class JavaGroupAdmin(GroupAdmin):
    name = "java"

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    def groups(self) -> dict[str, Listing]:
        return {name: Listing(*each) for name, each in self._client.ask("listGroups")["groups"].items()}

    def describe(self, group: str) -> Described:
        found = self.ask("describeGroup", group=group)
        members = tuple((each["client"], each["instance"], _places(each["places"])) for each in found["members"])
        return Described(found["state"], found["assignor"], members)

    def offsets(self, group: str, *places: Place) -> dict[Place, Committed]:
        return _offsets(self.ask("groupOffsets", group=group, places=places)["offsets"])

    def delete(self, group: str) -> None:
        self.ask("deleteGroup", group=group)

    def alter_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        packed = [(*place, offset, "") for place, offset in offsets.items()]
        self.ask("alterGroupOffsets", group=group, offsets=packed)

    def delete_offsets(self, group: str, *places: Place) -> None:
        self.ask("deleteGroupOffsets", group=group, places=places)

    def remove_members(self, group: str, *instances: str) -> None:
        """Remove the static members named, or else all members."""
        self.ask("removeMembers", group=group, instances=instances)

    def ask(self, verb: str, **details: Any) -> dict[str, Any]:
        """A command of java/GroupJudge.java with all it answers."""
        return self._client.ask(verb, **details)
