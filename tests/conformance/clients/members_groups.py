"""Every kind of member there is, by name, and the members of one case: joined, settled, closed at its end."""

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from kio.schema.errors import ErrorCode

from tests.conformance.wire import Wire
from tests.peers.kafka import ROOT

from .aio_groups import AioGroupAdmin, AioMember
from .client import DEADLINE_S, Client
from .confluent_groups import ConfluentGroupAdmin, ConfluentMember
from .groups import GroupAdmin, Member, Options, Place, wait_until
from .java import JavaClient
from .java_groups import JavaGroupAdmin, JavaMember
from .kafka_python_groups import KafkaPythonGroupAdmin, KafkaPythonMember

_PYTHON: dict[str, Callable[[str, Options], Member]] = {
    "confluent-range": functools.partial(ConfluentMember, assignor="range"),
    "confluent-roundrobin": functools.partial(ConfluentMember, assignor="roundrobin"),
    "confluent-cooperative-sticky": functools.partial(ConfluentMember, assignor="cooperative-sticky"),
    "confluent-consumer": functools.partial(ConfluentMember, protocol="consumer"),
    "aiokafka-range": functools.partial(AioMember, assignor="range"),
    "aiokafka-roundrobin": functools.partial(AioMember, assignor="roundrobin"),
    "aiokafka-sticky": functools.partial(AioMember, assignor="sticky"),
    "kafka-python-range": functools.partial(KafkaPythonMember, assignor="range"),
    "kafka-python-roundrobin": functools.partial(KafkaPythonMember, assignor="roundrobin"),
    "kafka-python-sticky": functools.partial(KafkaPythonMember, assignor="sticky"),
    "kafka-python-cooperative-sticky": functools.partial(KafkaPythonMember, assignor="cooperative-sticky"),
}
_JAVA: dict[str, Callable[[JavaClient, Options], Member]] = {
    "java-range": functools.partial(JavaMember, assignor="range"),
    "java-roundrobin": functools.partial(JavaMember, assignor="roundrobin"),
    "java-sticky": functools.partial(JavaMember, assignor="sticky"),
    "java-cooperative-sticky": functools.partial(JavaMember, assignor="cooperative-sticky"),
    "java-consumer": functools.partial(JavaMember, protocol="consumer"),
}
FLAVOURS = (*_PYTHON, *_JAVA)
# One of each library and protocol, for cases that an assignor makes no difference to.
PLAIN = (
    "confluent-range",
    "confluent-consumer",
    "aiokafka-roundrobin",
    "kafka-python-range",
    "java-range",
    "java-consumer",
)
COOPERATIVE = tuple(each for each in FLAVOURS if each.endswith(("cooperative-sticky", "-consumer")))
GROUP_ADMINS: tuple[type[GroupAdmin], ...] = (ConfluentGroupAdmin, KafkaPythonGroupAdmin, AioGroupAdmin, JavaGroupAdmin)


def open_member(flavour: str, bootstrap: str, options: Options) -> Member:
    """A member of a Python library."""
    return _PYTHON[flavour](bootstrap, options)


class DoomedProcess:
    """A member of a Python library in a process of its own, to be killed."""

    def __init__(self, flavour: str, bootstrap: str, options: Options) -> None:
        asked = json.dumps({"flavour": flavour, "bootstrap": bootstrap, "options": dataclasses.asdict(options)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.clients.process_groups", asked],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.assigned: frozenset[Place] = frozenset()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.assigned = frozenset((topic, partition) for topic, partition in json.loads(line))

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()


@functools.cache
def _wait_for_coordinator(bootstrap: str) -> None:
    """Kafka makes its topic of offsets on first use; consumers retry until then, not all admins do."""
    with Wire(bootstrap) as wire:

        def answers() -> bool:
            found = wire.call("find_coordinator", 2, key="nobody", key_type=0).error_code
            return found is ErrorCode.none and serves()

        def serves() -> bool:
            found = wire.call("describe_groups", 0, groups=["nobody"]).groups[0].error_code
            return bool(found is ErrorCode.none)

        wait_until(answers, lambda: "no coordinator of groups answers")


class Members:
    """The members of one case; they are closed together when it ends."""

    def __init__(self, bootstrap: str, clients: Mapping[str, Client]) -> None:
        self._bootstrap = bootstrap
        self._clients = clients
        _wait_for_coordinator(bootstrap)
        self._joined: list[Member] = []
        self._doomed: list[DoomedProcess] = []

    @property
    def _java(self) -> JavaClient:
        client = self._clients["java"]
        assert isinstance(client, JavaClient)
        return client

    def join(self, flavour: str, group: str, *topics: str, **options: Any) -> Member:
        """A new member; `options` are fields of `Options`."""
        whole = Options(group, tuple(topics), **options)
        member = _JAVA[flavour](self._java, whole) if flavour in _JAVA else _PYTHON[flavour](self._bootstrap, whole)
        self._joined.append(member)
        return member

    def join_doomed(self, flavour: str, group: str, *topics: str) -> "DoomedProcess | JavaMember":
        """A member that can crash: its connections end without a word to the coordinator."""
        if flavour in _JAVA:
            member = _JAVA[flavour](self._java, Options(group, tuple(topics)))
            assert isinstance(member, JavaMember)
            return member
        doomed = DoomedProcess(flavour, self._bootstrap, Options(group, tuple(topics)))
        self._doomed.append(doomed)
        return doomed

    def leave(self, member: Member) -> None:
        self._joined.remove(member)
        member.leave()

    def forget(self, member: Member) -> None:
        """Leave a member that failed, as it had to, alone."""
        self._joined.remove(member)

    def admin(self, kind: type[GroupAdmin]) -> GroupAdmin:
        return JavaGroupAdmin(self._java) if kind is JavaGroupAdmin else kind(self._bootstrap)  # type: ignore[call-arg]

    def __enter__(self) -> "Members":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, _: TracebackType | None
    ) -> None:
        for each in self._doomed:
            each.crash()
        # A member that failed has told so; a failure to close only counts in a case that went well.
        threads = [threading.Thread(target=self._close, args=(each, kind is not None)) for each in self._joined]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _close(member: Member, forgiving: bool) -> None:
        with contextlib.suppress(Exception) if forgiving else contextlib.nullcontext():
            member.leave()


def shared(members: Sequence[Any], places: Iterable[Place]) -> bool:
    """Whether the members own all the places, each place once, and none owns two more than another.

    An incremental rebalance passes through shares that are uneven; what is even stays.
    """
    owned = [each.assigned for each in members]
    sizes = [len(each) for each in owned]
    even = min(sizes) > 0 and max(sizes) - min(sizes) <= 1
    return even and sum(sizes) == len(set(places)) and frozenset().union(*owned) == frozenset(places)


def settle(members: Sequence[Any], places: Iterable[Place], seconds: float = DEADLINE_S) -> None:
    """Wait until the members share all the places."""
    wanted = list(places)
    wait_until(
        lambda: shared(members, wanted),
        lambda: f"{len(wanted)} partitions over {[sorted(each.assigned) for each in members]}",
        seconds,
    )


def places_of(topic: str, count: int) -> list[Place]:
    return [(topic, partition) for partition in range(count)]
