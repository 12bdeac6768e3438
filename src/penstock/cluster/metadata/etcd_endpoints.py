"""Calls to a cluster of etcd: which member is asked, who we say we are, and what an error means.

One member is asked until it gives trouble, then the next. A request that never left us, or was refused before it did
anything, goes to the next member at once; so does one that does no harm twice. A change that was sent and not answered
may have been made, so it is not sent again, and its caller is told that nobody knows.

The stubs are aetcd's. Its client is not used: it speaks no TLS, knows one address, keeps a token it never renews, and
takes no notice of a watch that the server ends.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

# gRPC's core writes to standard error by itself, which errors say anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from aetcd import rpc

from penstock.cluster.metadata.etcd import Tls
from penstock.observe.logs import get_logger
from penstock.ports.metadata import MetadataUnavailable

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]

_log = get_logger("cluster.etcd")
_PAUSE_S = 0.05
_OPTIONS = (
    # A snapshot's page or a watch's news may be larger than the usual 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # gRPC waits up to two minutes between attempts, and 20 s for each, by itself.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Two stores of a process share nothing, and a proxy for the web is none for etcd.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    # etcd allows one every 5 s. Calls have deadlines and watches ask for themselves; this ends connections nobody uses.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
_TROUBLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
    }
)
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "etcdserver: no leader")
_OLD_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")


class Refused(Exception):
    """etcd answered, and said no; nothing was changed."""

    def __init__(self, member: str, code: str, details: str) -> None:
        super().__init__(f"etcd {member}: {details}")
        self.code, self.details = code, details


class Member:
    """A channel to one member, with the services it offers."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self._tls = tls
        self._stamp = _stamp(tls)
        if tls is None:
            self.channel = rpc.insecure_channel(address, options=_OPTIONS)
        else:
            self.channel = rpc.secure_channel(address, _credentials(tls), options=_OPTIONS)
        self.kv: Any = rpc.KVStub(self.channel)
        self.lease: Any = rpc.LeaseStub(self.channel)
        self.watch: Any = rpc.WatchStub(self.channel)
        self.auth: Any = rpc.AuthStub(self.channel)
        self.maintenance: Any = rpc.MaintenanceStub(self.channel)

    def is_outdated(self) -> bool:
        """It would connect with certificates that have been replaced since."""
        return (
            self._tls is not None
            and self.channel.get_state() is not grpc.ChannelConnectivity.READY
            and _stamp(self._tls) != self._stamp
        )


class Endpoints:
    """The members of one etcd cluster, as one place to ask.

    Raises:
        OSError: a file of `tls` cannot be read.
    """

    def __init__(
        self, addresses: Sequence[str], *, tls: Tls | None, user: str, password: str, timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self._tls = tls
        self._user, self._password = user, password
        self._members = [Member(address, tls) for address in addresses]
        self._turn = 0
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._cluster_id = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.streams: set[Any] = set()
        """Calls without an end, to be ended by `close`."""
        self.is_closed = False

    def current(self) -> Member:
        """The member to ask next."""
        member = self._members[self._turn]
        if member.is_outdated():
            with suppress(OSError, ValueError):  # half replaced: the next one to ask looks again
                renewed = Member(member.address, self._tls)
                self._retire(member)
                self._members[self._turn] = member = renewed
        return member

    def leave(self, member: Member) -> None:
        """Ask another from now on, unless somebody has seen to it already."""
        if self._members[self._turn] is member:
            self._turn = (self._turn + 1) % len(self._members)

    async def ask(self, attempt: Callable[[Member, Metadata, float], Awaitable[T]], *, repeat: bool = True) -> T:
        """The answer of the first member that gives one.

        Args:
            attempt: makes the call; given the member, the call's metadata and its time.
            repeat: the call does no harm twice.

        Raises:
            MetadataUnavailable: nobody answered in time.
            Refused: etcd says no.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        # Two of three members may be asked in vain, also when they take the call and never answer.
        share_s = self.timeout_s / 2 if repeat and len(self._members) > 1 else self.timeout_s
        problem = ""
        while not self.is_closed:
            member = self.current()
            within_s = max(0.001, min(share_s, deadline_s - loop.time()))
            token = self._token
            try:
                metadata = await self.metadata(member, within_s)
                token = self._token
                answer = await attempt(member, metadata, within_s)
            except rpc.AioRpcError as error:
                problem = _problem(member, error, problem)
                if error.details() in _OLD_TOKEN and self._user:
                    self._forget(token)
                elif error.code() not in _TROUBLE:
                    raise Refused(member.address, error.code().name, error.details() or "no reason given") from None
                else:
                    self.leave(member)
                    if not repeat and not _never_sent(error):
                        raise MetadataUnavailable(problem) from None
                if loop.time() + _PAUSE_S >= deadline_s:
                    raise MetadataUnavailable(problem) from None
                await asyncio.sleep(_PAUSE_S)
            except asyncio.CancelledError:
                # gRPC's word also for a channel that was closed under a call.
                if not self.is_closed or _is_cancelled():
                    self.leave(member)  # who asked has no more patience: the next call should not wait for it again
                    raise
            except grpc.aio.UsageError:
                if not self.is_closed:
                    raise
            else:
                self.check(member, answer)
                return answer
        raise MetadataUnavailable("the etcd metadata store is closed")

    def check(self, member: Member, answer: Any) -> None:
        """Raise if the answer comes from another cluster than the ones before: revisions would mean nothing."""
        found = answer.header.cluster_id
        self._cluster_id = self._cluster_id or found
        if found != self._cluster_id:
            self.leave(member)
            raise MetadataUnavailable(
                f"etcd {member.address} belongs to cluster {found:x}, not to {self._cluster_id:x} as before: "
                f"name members of one cluster only; restart the broker if that cluster is meant to take over"
            )

    async def metadata(self, member: Member, within_s: float) -> Metadata:
        """What every call carries: a token, if there is a user, and the wish to hear of a lost leader."""
        leader = ("hasleader", "true")
        if not self._user:
            return (leader,)
        async with self._authenticating:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._user, password=self._password)
                self._token = (await member.auth.Authenticate(request, metadata=(leader,), timeout=within_s)).token
        return (leader, ("token", self._token))

    async def close(self) -> None:
        self.is_closed = True
        for stream in self.streams:
            stream.cancel()
        for task in self._closing:
            task.cancel()
        for member in self._members:
            await member.channel.close()

    def _forget(self, token: str) -> None:
        if self._token == token:
            self._token = ""

    def _retire(self, member: Member) -> None:
        task = asyncio.get_running_loop().create_task(member.channel.close(self.timeout_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        _log.info("etcd certificates read again", member=member.address)


def _is_cancelled() -> bool:
    """Somebody cancelled the task that runs, as opposed to a call in it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _problem(member: Member, error: Any, before: str) -> str:
    """What an attempt has met; if the deadline has cut it short, what the one before has."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return before or f"etcd {member.address} did not answer in time"
    details = error.details() or error.code().name
    if "TSI_DATA_CORRUPTED" in details:  # what gRPC makes of an alert that comes after the handshake
        details += "; etcd wants a certificate from us, or another one"
    return f"etcd {member.address}: {details}"


def _never_sent(error: Any) -> bool:
    return (error.details() or "").startswith(_NEVER_SENT)


def _credentials(tls: Tls) -> Any:
    authority, certificate, key = (_read(path) for path in tls)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _read(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def _stamp(tls: Tls | None) -> tuple[tuple[int, int, int], ...]:
    found = []
    for path in tls or ():
        with suppress(OSError):
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
