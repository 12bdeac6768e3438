"""One watch of etcd: the changes of a prefix, revision by revision, until it is not certain any more that they are all.

A connection that went dead says nothing, and so does a watch on which nothing happens. So a silent watch is asked for
its progress; no answer ends it.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

from aetcd import rpc

from penstock.cluster.metadata.etcd_endpoints import Endpoints, Member, Refused
from penstock.ports.metadata import Change, MetadataUnavailable, WatchLost

_QUIET_S = 2.0
_CLOSED = "the etcd metadata store is closed"


class EtcdWatch:
    """Changes of keys from `begin` to before `end`, told without their first `cut` bytes.

    Ends by `WatchLost`.
    """

    def __init__(self, endpoints: Endpoints, begin: bytes, end: bytes, cut: int) -> None:
        self._endpoints = endpoints
        self._keys = begin, end
        self._cut = cut
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._call: Any = None
        self._reading: asyncio.Task[Any] | None = None

    async def changes(self, after_revision: int) -> AsyncIterator[list[Change]]:
        if self._endpoints.is_closed:
            raise WatchLost(_CLOSED)
        member = self._endpoints.current()
        last = after_revision
        try:
            await self._create(member, after_revision)
            while True:
                response = await self._next()
                self._endpoints.check(member, response)
                if response.canceled:
                    raise WatchLost(_reason(member, response))
                if response.created and response.header.revision < after_revision:
                    await self._check_age(after_revision)
                news = (event for event in response.events if event.kv.mod_revision > after_revision)
                for revision, events in groupby(news, key=lambda event: event.kv.mod_revision):
                    if revision <= last:
                        raise WatchLost(f"etcd {member.address} told of revision {revision} after {last}")
                    last = revision
                    yield [self._change(event) for event in events]
        except rpc.AioRpcError as error:
            self._endpoints.leave(member)
            raise WatchLost(f"etcd {member.address}: {error.details() or error.code().name}") from None
        except TimeoutError:
            self._endpoints.leave(member)
            raise WatchLost(f"etcd {member.address}: no answer for {self._endpoints.timeout_s:g} s") from None
        except (MetadataUnavailable, Refused) as error:
            raise WatchLost(str(error)) from None
        finally:
            self._end()

    def _end(self) -> None:
        if self._call is not None:
            self._endpoints.streams.discard(self._call)
            self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()

    async def _create(self, member: Member, after_revision: int) -> None:
        begin, end = self._keys
        # From the revision we know: etcd says nothing of the progress of a watch that begins in the future.
        request = rpc.WatchCreateRequest(key=begin, range_end=end, start_revision=max(1, after_revision))
        self._requests.put_nowait(rpc.WatchRequest(create_request=request))
        metadata = await self._endpoints.metadata(member, self._endpoints.timeout_s)
        if self._endpoints.is_closed:
            raise WatchLost(_CLOSED)
        self._call = member.watch.Watch(self._sent(), metadata=metadata)
        self._endpoints.streams.add(self._call)

    async def _sent(self) -> AsyncIterator[Any]:
        """What the call sends. Its own `write` would hang when the call is cancelled before it is connected."""
        while True:
            yield await self._requests.get()

    async def _next(self) -> Any:
        """The next response, of whatever kind. Raises TimeoutError when there is none though one was asked for."""
        # Cancelling a read would cancel the stream, so a read goes on until it has something.
        reading = self._reading = asyncio.get_running_loop().create_task(self._call.read())
        reading.add_done_callback(_retrieve)
        if not (await asyncio.wait({reading}, timeout=_QUIET_S))[0]:
            self._requests.put_nowait(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
            if not (await asyncio.wait({reading}, timeout=self._endpoints.timeout_s))[0]:
                raise TimeoutError
        if reading.cancelled():
            raise WatchLost(_CLOSED)
        response = reading.result()
        if not isinstance(response, rpc.WatchResponse):
            raise WatchLost("etcd ended the watch")
        return response

    async def _check_age(self, after_revision: int) -> None:
        """A member may be behind for a moment; a cluster that is would keep us waiting for news it has had already."""
        request = rpc.RangeRequest(key=self._keys[0], count_only=True)
        found = await self._endpoints.ask(
            lambda member, metadata, timeout: member.kv.Range(request, metadata=metadata, timeout=timeout)
        )
        if found.header.revision < after_revision:
            raise WatchLost(
                f"etcd is at revision {found.header.revision}, before {after_revision}: an old copy was put back"
            )

    def _change(self, event: Any) -> Change:
        value = None if event.type == rpc.Event.DELETE else event.kv.value
        return Change(event.kv.key[self._cut :].decode(), value, event.kv.mod_revision)


def _reason(member: Member, response: Any) -> str:
    if response.compact_revision:
        return f"etcd has forgotten changes before revision {response.compact_revision}"
    return f"etcd {member.address} ended the watch: {response.cancel_reason or 'no reason given'}"


def _retrieve(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
