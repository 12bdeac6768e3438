"""One Kafka connection: find the handler of each request, time it, answer it.

The handlers' table is the one source of what is spoken: ApiVersions answers from it.

On the internal listener a peer first proves that it is a broker of this cluster, by its certificate or by SCRAM. Until
then it gets little memory, little time, and no answer to anything else. What only brokers may ask is refused
elsewhere.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import ModuleType
from typing import Any, cast

from penstock.net.connection import Answer, Connection, PeerError
from penstock.observe.logs import get_logger
from penstock.observe.stats import RequestStats
from penstock.ports.clock import Clock
from penstock.protocols.kafka import errors, fetch_codec, segment_codec
from penstock.protocols.kafka.codec import decode_client_id, decode_head, encode_response_head, skip_client_id
from penstock.protocols.kafka.fetch_sessions import MAX_ERRORS
from penstock.protocols.kafka.handlers import (
    Api,
    Caller,
    Context,
    Fields,
    Handle,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    copy_segment,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
)
from penstock.protocols.kafka.identity import Login
from penstock.protocols.kafka.messages import Schema, decode, decode_in_steps, encode, schema_of
from penstock.protocols.kafka.segment_codec import CopyRequest

log_ = get_logger("kafka")

_HANDLERS: tuple[ModuleType, ...] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    api_versions,
    sasl_handshake,
    sasl_authenticate,
    create_topics,
    delete_topics,
    init_producer_id,
    offset_for_leader_epoch,
    delete_records,
    create_partitions,
    describe_configs,
    alter_configs,
    incremental_alter_configs,
    list_config_resources,
    describe_cluster,
    describe_topic_partitions,
    describe_log_dirs,
    describe_producers,
    join_group,
    sync_group,
    heartbeat,
    leave_group,
    consumer_group_heartbeat,
    consumer_group_describe,
    offset_commit,
    offset_fetch,
    offset_delete,
    list_groups,
    describe_groups,
    delete_groups,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
    txn_offset_commit,
    write_txn_markers,
    describe_transactions,
    list_transactions,
    elect_leaders,
    alter_partition_reassignments,
    list_partition_reassignments,
    unregister_broker,
)
APIS: tuple[Api, ...] = tuple(module.API for module in _HANDLERS)
_BY_KEY = {module.API.key: module for module in _HANDLERS}
_LARGEST_SMALL_REQUEST = 2 << 20  # every request but Produce
_DECODED_AT_ONCE = 8 * 1024  # bytes: at most 4 ms, if they are topics with a letter for a name
_BEFORE_LOGIN: tuple[ModuleType, ...] = (api_versions, sasl_handshake, sasl_authenticate)
_LARGEST_BEFORE_LOGIN = 64 * 1024
_LOGIN_S = 10.0
_LARGE_FETCH = 32 * 1024
_TOPIC_AUTHORIZATION_FAILED = 29
PROTOCOL = "kafka"


class KafkaSession:
    """The session of one connection; see `net.connection.Session`.

    Args:
        internal: whether the connection came to the listener for brokers.
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_context",
        "_deadline",
        "_fetches",
        "_is_broker",
        "_is_locked",
        "_login",
        "_reading",
        "_replica_id",
        "_stats",
        "_tasks",
    )

    def __init__(self, context: Context, connection: Connection, clock: Clock, *, internal: bool = False) -> None:
        self._is_broker = internal and connection.certified
        self._is_locked = internal and not self._is_broker
        self._login: Login | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if internal and context.identity is not None:
            self._login = context.identity.make_login()
        if self._is_locked:
            connection.limit_frames(_LARGEST_BEFORE_LOGIN)
            self._deadline = asyncio.get_running_loop().call_later(_LOGIN_S, self._too_late)
        self._context = context
        self._connection = connection
        self._clock = clock
        self._stats: dict[int, RequestStats] = {}
        self._fetches: list[fetch.Fetch] = []
        self._reading: asyncio.Task[None] | None = None
        self._replica_id = -1
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, frame: memoryview, answer: Answer) -> None:
        key, version, correlation_id, position = decode_head(frame)
        module = _BY_KEY.get(key)
        if module is None and self._is_broker and key == copy_segment.API.key:
            module = copy_segment  # never advertised; on other connections there is no such thing
        if module is None:
            raise PeerError(f"unknown API key {key}")
        api: Api = module.API
        if self._is_locked and module not in _BEFORE_LOGIN:
            raise PeerError(f"{api.name} from a peer that has not proved to be a broker of this cluster")
        if not api.oldest <= version <= api.newest:
            self._wrong_version(api, version, correlation_id, answer)
            return
        stats = self._stats.get(key)
        if stats is None:
            stats = self._stats[key] = self._context.stats.request(PROTOCOL, api.name)
        answer.time(stats.latency, self._clock.monotonic())
        if module is produce:
            start = skip_client_id(frame, position, flexible=version >= produce.FLEXIBLE_FROM)
            produce.handle(self._context, frame, start, version, correlation_id, answer)
        elif module is fetch:
            self._handle_fetch(frame, position, version, correlation_id, answer)
        elif module is copy_segment:
            start = skip_client_id(frame, position, flexible=False)
            self._start(self._copy(segment_codec.decode(frame[start:]), correlation_id, answer, stats))
        else:
            self._handle_message(module, frame, position, version, correlation_id, answer, stats)

    def _handle_fetch(
        self, frame: memoryview, position: int, version: int, correlation_id: int, answer: Answer
    ) -> None:
        start = skip_client_id(frame, position, flexible=version >= fetch_codec.FLEXIBLE_FROM)
        most = fetch_codec.MAX_PARTITIONS
        if len(frame) > _LARGE_FETCH and not self._is_broker:  # what is not here costs as much as what is
            most = 2 * (self._context.engine.topics.partition_count + MAX_ERRORS)
        request = fetch_codec.decode(frame, start, version, most)
        if request.replica_id >= 0 and not self._is_broker:
            body = fetch_codec.encode_refusal(request, version, _TOPIC_AUTHORIZATION_FAILED)  # as Kafka does
            self._send(fetch.API, version, correlation_id, body, answer)
            return
        self._replica_id = request.replica_id
        under_way = fetch.Fetch(self._context, request, version, correlation_id, answer)
        under_way.start()
        if not under_way.over:
            self._fetches = [other for other in self._fetches if not other.over]
            self._fetches.append(under_way)

    def _handle_message(
        self,
        module: ModuleType,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        if len(frame) > _LARGEST_SMALL_REQUEST:
            raise PeerError(f"{module.API.name} request of {len(frame)} bytes; allowed: {_LARGEST_SMALL_REQUEST}")
        schema = schema_of(module.API.name, version, "request")
        start = skip_client_id(frame, position, flexible=schema.flexible)
        key, revision = b"", -1
        if module is metadata:
            if self._context.is_isolated():  # an answer would keep the client here: it asks whom it has a connection to
                raise PeerError("this broker is cut off from the cluster; clients ask others who leads")
            topics = self._context.engine.topics
            body = self._context.metadata_answers.get(topics.revision, version, frame[start:])
            if body is not None:
                self._send(module.API, version, correlation_id, body, answer)
                return
            key = bytes(frame[start:])
            revision = topics.revision
        handler: Handle = module.handle
        callers: tuple[Caller, ...] = ()
        if module.API.told_caller:
            host, _, _ = self._connection.peer.rpartition(":")
            # The address is written as Java writes one.
            callers = (Caller(decode_client_id(frame, position), f"/{host}", self._is_broker, self._login),)
        is_large = len(frame) - start > _DECODED_AT_ONCE
        waits = (module.API.is_slow or (is_large and not module.API.parks)) and not self._is_broker
        result: Fields | Coroutine[Any, Any, Fields]
        if is_large:
            kept = memoryview(bytes(frame[start:]))  # the frame's memory is the next request's when this returns
            result = self._in_steps(partial(handler, self._context), schema, kept, version, callers, waits)
            self._connection.busy()
        else:
            call = partial(handler, self._context, decode(schema, frame, start), version, *callers)
            at_once = not module.API.is_slow or self._context.engine.turns.take()
            result = call() if at_once else self._in_turn(call)
        if isinstance(result, dict):
            self._reply(module.API, version, correlation_id, result, answer)
            return
        asked = cast(Coroutine[Any, Any, Fields], result)
        task = self._start(self._finish(asked, module.API, version, correlation_id, answer, stats, key, revision))
        if waits:
            self._wait_for(task, asked, module.API)

    async def _in_turn(self, call: Callable[[], Fields | Coroutine[Any, Any, Fields]]) -> Fields:
        await self._context.engine.turns.next()
        result = call()
        return await result if isinstance(result, Coroutine) else result

    async def _in_steps(
        self,
        call: Callable[..., Fields | Coroutine[Any, Any, Fields]],
        schema: Schema,
        body: memoryview,
        version: int,
        callers: tuple[Caller, ...],
        waits: bool,
    ) -> Fields:
        """The same for a request that takes long to read; the next one must not be begun before it."""
        turns = self._context.engine.turns
        await turns.next()
        request = await decode_in_steps(schema, body, turns.next)
        result = call(request, version, *callers)
        if not waits:
            self._connection.free()  # goes on in the loop's next turn
        return await result if isinstance(result, Coroutine) else result

    def _wait_for(self, task: "asyncio.Task[None]", asked: Coroutine[Any, Any, Fields], api: Api) -> None:
        """Let nothing else be asked for until this is answered."""

        def over(_: "asyncio.Task[None]") -> None:
            asked.close()  # it may have been cancelled before it began
            self._reading = None
            self._connection.free()

        if api.reads:
            self._reading = task
        task.add_done_callback(over)
        self._connection.busy()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _copy(self, request: CopyRequest, correlation_id: int, answer: Answer, stats: RequestStats) -> None:
        try:
            answer.send(await copy_segment.handle(self._context, request, correlation_id))
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            self._failed(copy_segment.API, copy_segment.API.newest, stats)

    async def _finish(
        self,
        result: Coroutine[Any, Any, Fields],
        api: Api,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
        key: bytes,
        revision: int,
    ) -> None:
        try:
            fields = await result
            body = self._reply(api, version, correlation_id, fields, answer)
            if key and fields["lasts"]:
                self._context.metadata_answers.put(revision, version, key, body)
        except PeerError as error:
            self._connection.refuse(error)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            self._failed(api, version, stats)

    def _failed(self, api: Api, version: int, stats: RequestStats) -> None:
        stats.errors += 1
        log_.limited("bug").exception("request failed", api=api.name, version=version, peer=self._connection.peer)
        self._connection.abort()

    def _reply(self, api: Api, version: int, correlation_id: int, fields: Fields, answer: Answer) -> bytes:
        body = encode(schema_of(api.name, version, "response"), fields)
        self._send(api, version, correlation_id, body, answer)
        if self._is_locked and self._login is not None:
            self._look_at(self._login)
        return body

    def _look_at(self, login: Login) -> None:
        """Let a peer in that has proved itself; part with one that never will."""
        if login.is_done:
            self._is_broker, self._is_locked = True, False
            self._connection.limit_frames(None)
            self._stop_waiting()
        elif login.has_failed:
            self._connection.close()

    def _too_late(self) -> None:
        self._deadline = None
        log_.limited("login").warning(
            "closing connection", peer=self._connection.peer, reason=f"no authentication in {_LOGIN_S:g} s"
        )
        self._connection.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _send(self, api: Api, version: int, correlation_id: int, body: bytes, answer: Answer) -> None:
        flexible = schema_of(api.name, version, "response").flexible
        flexible = flexible and api is not api_versions.API  # whose header never changes (KIP-511)
        answer.send((encode_response_head(correlation_id, len(body), flexible=flexible) + body,))

    def _wrong_version(self, api: Api, version: int, correlation_id: int, answer: Answer) -> None:
        if api is not api_versions.API:
            raise PeerError(f"{api.name} version {version}; spoken here: {api.oldest} to {api.newest}")
        fields = {"error_code": errors.UNSUPPORTED_VERSION, "api_keys": api_versions.advertised(APIS)}
        self._reply(api, 0, correlation_id, fields, answer)

    def disconnected(self) -> None:
        for under_way in self._fetches:
            under_way.cancel()
        self._fetches = []
        self._stop_waiting()
        if self._reading is not None:
            self._reading.cancel()
        if self._replica_id >= 0:
            self._context.broker_lost(self._replica_id)
        # What changes something goes on: a topic half created is worse than one nobody is told of.
