"""The metadata store of a cluster: etcd.

Keys lie under a prefix, so that others may use the same etcd. A key's revision is etcd's mod revision, and a
transaction of the port is one of etcd's. Reads are linearizable. gRPC is imported when a store is opened: a broker on
its own never pays for it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cluster.metadata.transaction import Transaction, check_size, make_transaction
from penstock.errors import Code, PenstockError, StartupError, WrongSettings
from penstock.extras import install_line
from penstock.observe.logs import get_logger
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataConflict, MetadataUnavailable, Snapshot

if TYPE_CHECKING:
    from penstock.cluster.metadata.etcd_endpoints import Endpoints, Refused

Entries = list[Entry]  # inside the class, `list` is a method
Changes = list[Change]

DEFAULT_PREFIX = "/penstock/"
DEFAULT_PORT = 2379
_PAGE_KEYS = 5000
_OLDEST_SOUND = (3, 5, 3)
_UNKNOWN_USER = (
    "etcdserver: authentication failed, invalid user ID or password",
    "etcdserver: user name is empty",
)
_log = get_logger("cluster.etcd")


class Tls(NamedTuple):
    """Files in PEM. They are read again for new connections once they have changed."""

    authority: str = ""
    """Who signs etcd's certificates; empty: those gRPC trusts."""
    certificate: str = ""
    """Ours, with `key`, where etcd asks for one."""
    key: str = ""


class Address(NamedTuple):
    """Where a store is: `etcd://host:port,host:port/prefix`; with `etcds` over TLS."""

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    is_secure: bool = False

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises WrongSettings."""
        scheme, separator, rest = url.partition("://")
        hosts, _, path = rest.partition("/")
        if not separator or scheme not in ("etcd", "etcds") or "@" in hosts:
            raise WrongSettings(
                f"metadata store {url!r} is not of the form etcd://host:port,host:port/prefix "
                f"(etcds for TLS; user and password have settings of their own)"
            )
        endpoints = tuple(_with_port(url, host) for host in hosts.split(","))
        return cls(endpoints, f"/{path.strip('/')}/" if path.strip("/") else DEFAULT_PREFIX, scheme == "etcds")


class EtcdStore:
    """The metadata port on etcd. Make one with `open`."""

    def __init__(self, endpoints: "Endpoints", prefix: str) -> None:
        from aetcd import rpc

        self._rpc: Any = rpc
        self._endpoints = endpoints
        self._prefix = prefix.encode()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        tls: Tls | None = None,
        user: str = "",
        password: str = "",
        timeout_s: float = 3.0,
        patience_s: float = 30.0,
    ) -> "EtcdStore":
        """Connect, log in, and see that keys under the prefix may be read and written.

        Args:
            url: see `Address`.
            tls: given, TLS is spoken whatever the URL says.
            timeout_s: for every call.
            patience_s: for how long an etcd that does not answer is asked again.

        Raises:
            WrongSettings: it is no URL of a store, what it needs is not installed, certificates cannot be read, or no
                user has this name and password.
            StartupError: no answer, or no rights, which etcd may give any moment.
        """
        address = Address.parse(url)
        try:
            from penstock.cluster.metadata.etcd_endpoints import Endpoints
        except ImportError as error:
            raise WrongSettings(f"metadata store {url}: {error}. Install it with {install_line('cluster')}") from error
        if tls is None and address.is_secure:
            tls = Tls()
        try:
            endpoints = Endpoints(address.endpoints, tls=tls, user=user, password=password, timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            raise WrongSettings(f"metadata store {url}: certificates cannot be read: {error}") from error
        store = cls(endpoints, address.prefix)
        try:
            await store._check_in(url, user, patience_s)
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Entry | None:
        found = await self._range(key=self._prefix + key.encode())
        return self._entry(found.kvs[0]) if found.kvs else None

    async def list(self, prefix: str) -> Entries:
        return (await self.snapshot(prefix)).entries

    async def snapshot(self, prefix: str) -> Snapshot:
        begin = self._prefix + prefix.encode()
        page = await self._range(key=begin, range_end=_end_of(begin), limit=_PAGE_KEYS)
        revision = page.header.revision
        entries = [self._entry(found) for found in page.kvs]
        while page.more:  # by pages: no one answer stops the event loop or etcd for long
            begin = page.kvs[-1].key + b"\0"
            end = _end_of(self._prefix + prefix.encode())
            page = await self._range(key=begin, range_end=end, limit=_PAGE_KEYS, revision=revision)
            entries += [self._entry(found) for found in page.kvs]
        return Snapshot(entries, revision)

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
        put_leased: Mapping[str, bytes] | None = None,
        lease: int = 0,
    ) -> int:
        transaction = make_transaction(expect, put, delete, put_leased, lease)
        check_size(transaction)
        request = self._request(transaction)
        answer = await self._ask(
            lambda member, metadata, timeout: member.kv.Txn(request, metadata=metadata, timeout=timeout), repeat=False
        )
        if not answer.succeeded:
            for (key, revision), found in zip(transaction.expect.items(), answer.responses, strict=True):
                kvs = found.response_range.kvs
                if (kvs[0].mod_revision if kvs else 0) != revision:
                    raise MetadataConflict(key, revision, kvs[0].mod_revision if kvs else 0)
        return int(answer.header.revision)

    async def grant(self, ttl_s: int) -> int:
        request = self._rpc.LeaseGrantRequest(TTL=ttl_s)
        # Asked twice, one lease may be left to itself, and ends.
        answer = await self._ask(
            lambda member, metadata, timeout: member.lease.LeaseGrant(request, metadata=metadata, timeout=timeout)
        )
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> None:
        request = self._rpc.LeaseKeepAliveRequest(ID=lease)

        async def attempt(member: Any, metadata: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC keeps it
            call = member.lease.LeaseKeepAlive([request], metadata=metadata, timeout=timeout)
            try:
                answer = await call.read()
                if not isinstance(answer, self._rpc.LeaseKeepAliveResponse):
                    raise MetadataUnavailable(f"etcd {member.address} hung up")
                return answer
            finally:
                call.cancel()

        if (await self._ask(attempt)).TTL <= 0:
            raise LeaseLost(f"lease {lease:x} has ended")

    async def revoke(self, lease: int) -> None:
        request = self._rpc.LeaseRevokeRequest(ID=lease)
        try:
            await self._ask(
                lambda member, metadata, timeout: member.lease.LeaseRevoke(request, metadata=metadata, timeout=timeout)
            )
        except LeaseLost:
            return

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Changes]:
        from penstock.cluster.metadata.etcd_watch import EtcdWatch

        begin = self._prefix + prefix.encode()
        return EtcdWatch(self._endpoints, begin, _end_of(begin), len(self._prefix)).changes(after_revision)

    async def close(self) -> None:
        """Let go of every connection; watches end by `WatchLost`, later calls raise `MetadataUnavailable`."""
        await self._endpoints.close()

    def _request(self, transaction: Transaction) -> Any:
        rpc = self._rpc
        request = rpc.TxnRequest()
        for key, revision in transaction.expect.items():
            name = self._prefix + key.encode()
            request.compare.add(result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=name, mod_revision=revision)
            request.failure.add(request_range=rpc.RangeRequest(key=name, keys_only=True))
        for key, (value, lease) in transaction.put.items():
            request.success.add(request_put=rpc.PutRequest(key=self._prefix + key.encode(), value=value, lease=lease))
        for key in transaction.delete:
            request.success.add(request_delete_range=rpc.DeleteRangeRequest(key=self._prefix + key.encode()))
        return request

    async def _range(self, **fields: Any) -> Any:
        request = self._rpc.RangeRequest(**fields)
        return await self._ask(
            lambda member, metadata, timeout: member.kv.Range(request, metadata=metadata, timeout=timeout)
        )

    async def _ask(self, attempt: Callable[[Any, Any, float], Awaitable[Any]], *, repeat: bool = True) -> Any:
        from penstock.cluster.metadata.etcd_endpoints import Refused

        try:
            return await self._endpoints.ask(attempt, repeat=repeat)
        except Refused as refused:
            if "lease not found" in refused.details:
                raise LeaseLost(str(refused)) from None
            if "request is too large" in refused.details:
                raise PenstockError(
                    Code.LIMIT_EXCEEDED, str(refused), help="Raise etcd's --max-request-bytes; nothing was changed."
                ) from None
            raise MetadataUnavailable(str(refused)) from None

    def _entry(self, found: Any) -> Entry:
        return Entry(found.key[len(self._prefix) :].decode(), found.value, found.mod_revision)

    async def _check_in(self, url: str, user: str, patience_s: float) -> None:
        from penstock.cluster.metadata.etcd_endpoints import Refused

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + patience_s
        while True:
            try:
                await self._check_rights()
                return
            except Refused as refused:
                told = f"metadata store {url}: {_way_out(refused, user, self._prefix)}"
                raise (WrongSettings if refused.details in _UNKNOWN_USER else StartupError)(told) from None
            except MetadataUnavailable as problem:
                if loop.time() >= deadline_s:
                    raise StartupError(
                        f"metadata store {url} did not answer within {patience_s:g} s: {problem}. "
                        f"Check that a majority of its members runs, and that host, port and TLS are right."
                    ) from None
                _log.limited("waiting", 0.2).warning("waiting for etcd", url=url, problem=str(problem))

    async def _check_rights(self) -> None:
        """Ask for what a broker needs: reading all keys, and, in a transaction that comes to nothing, writing one."""
        rpc = self._rpc
        read = rpc.RangeRequest(key=self._prefix, range_end=_end_of(self._prefix), limit=1, keys_only=True)
        await self._endpoints.ask(lambda member, data, timeout: member.kv.Range(read, metadata=data, timeout=timeout))
        name = self._prefix + b"rights"
        write = rpc.TxnRequest()
        write.compare.add(result=rpc.Compare.LESS, target=rpc.Compare.MOD, key=name, mod_revision=0)
        write.success.add(request_put=rpc.PutRequest(key=name))
        await self._endpoints.ask(lambda member, data, timeout: member.kv.Txn(write, metadata=data, timeout=timeout))
        status = await self._endpoints.ask(
            lambda member, data, timeout: member.maintenance.Status(rpc.StatusRequest(), metadata=data, timeout=timeout)
        )
        if version_of(status.version) < _OLDEST_SOUND:
            _log.warning("this etcd may lose data when it is killed", version=status.version, use="3.6 or later")


def version_of(text: str) -> tuple[int, ...]:
    """`3.7.0-rc.1` as (3, 7, 0); empty if it is no version."""
    found = re.match(r"[0-9]+(\.[0-9]+)+", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _with_port(url: str, host: str) -> str:
    name, separator, port = host.rpartition(":")
    if not separator or host.endswith("]"):
        name, port = host, str(DEFAULT_PORT)
    if not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WrongSettings(f"metadata store {url!r}: {host!r} is not host:port")
    return f"{name}:{port}"


def _end_of(prefix: bytes) -> bytes:
    """The first key behind all that start with `prefix`, which is text and so never ends with byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _way_out(refused: "Refused", user: str, prefix: bytes) -> str:
    match refused.details.removeprefix("etcdserver: "):
        case "authentication failed, invalid user ID or password":
            advice = f"Check the name {user!r} and its password."
        case "permission denied":
            command = f"etcdctl role grant-permission ROLE --prefix=true readwrite {prefix.decode()}"
            who = f"user {user!r}" if user else "this client"
            advice = f"Give {who} a role that may read and write all keys under {prefix.decode()} ({command})."
        case "user name is empty":
            advice = "This etcd wants a user: set name and password."
        case "authentication is not enabled":
            advice = "Turn it on (etcdctl auth enable), or set no user."
        case _:
            advice = "Look into etcd's log."
    return f"{refused}. {advice}"
