"""One Kafka connection: find the handler of each request, time it, answer it.

The handlers' table is the one source of what is spoken: ApiVersions answers from it.
"""

import asyncio
from collections.abc import Awaitable
from types import ModuleType
from typing import cast

from penstock.net.connection import Answer, Connection, PeerError
from penstock.observe.logs import get_logger
from penstock.observe.stats import RequestStats
from penstock.ports.clock import Clock
from penstock.protocols.kafka import errors, fetch_codec
from penstock.protocols.kafka.codec import decode_client_id, decode_head, encode_response_head, skip_client_id
from penstock.protocols.kafka.handlers import (
    Api,
    Caller,
    Context,
    Fields,
    Handle,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
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
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from penstock.protocols.kafka.messages import decode, encode, schema_of

log_ = get_logger("kafka")

_HANDLERS: tuple[ModuleType, ...] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    api_versions,
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
)
APIS: tuple[Api, ...] = tuple(module.API for module in _HANDLERS)
_BY_KEY = {module.API.key: module for module in _HANDLERS}
_LARGEST_SMALL_REQUEST = 2 << 20  # every request but Produce
PROTOCOL = "kafka"


class KafkaSession:
    """The session of one connection; see `net.connection.Session`."""

    __slots__ = ("_clock", "_connection", "_context", "_fetches", "_stats", "_tasks")

    def __init__(self, context: Context, connection: Connection, clock: Clock) -> None:
        self._context = context
        self._connection = connection
        self._clock = clock
        self._stats: dict[int, RequestStats] = {}
        self._fetches: list[fetch.Fetch] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, frame: memoryview, answer: Answer) -> None:
        key, version, correlation_id, position = decode_head(frame)
        module = _BY_KEY.get(key)
        if module is None:
            raise PeerError(f"unknown API key {key}")
        api: Api = module.API
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
            start = skip_client_id(frame, position, flexible=version >= fetch_codec.FLEXIBLE_FROM)
            under_way = fetch.handle(self._context, frame, start, version, correlation_id, answer)
            if not under_way.over:
                self._fetches = [other for other in self._fetches if not other.over]
                self._fetches.append(under_way)
        else:
            self._handle_message(module, frame, position, version, correlation_id, answer, stats)

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
            topics = self._context.engine.topics
            body = self._context.metadata_answers.get(topics.revision, version, frame[start:])
            if body is not None:
                self._send(module.API, version, correlation_id, body, answer)
                return
            key = bytes(frame[start:])
            revision = topics.revision
        request = decode(schema, frame, start)
        handler: Handle = module.handle
        if module.API.told_caller:
            host, _, _ = self._connection.peer.rpartition(":")
            caller = Caller(decode_client_id(frame, position), f"/{host}")  # written as Java writes an address
            result = handler(self._context, request, version, caller)
        else:
            result = handler(self._context, request, version)
        if isinstance(result, dict):
            self._reply(module.API, version, correlation_id, result, answer)
            return
        work = self._finish(
            cast(Awaitable[Fields], result), module.API, version, correlation_id, answer, stats, key, revision
        )
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self,
        result: Awaitable[Fields],
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
            if key and not any(topic["error_code"] for topic in fields["topics"]):
                self._context.metadata_answers.put(revision, version, key, body)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            stats.errors += 1
            log_.limited("bug").exception("request failed", api=api.name, version=version, peer=self._connection.peer)
            self._connection.abort()

    def _reply(self, api: Api, version: int, correlation_id: int, fields: Fields, answer: Answer) -> bytes:
        body = encode(schema_of(api.name, version, "response"), fields)
        self._send(api, version, correlation_id, body, answer)
        return body

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
        # Tasks of admin requests go on: a topic half created is worse than one nobody is told of.
