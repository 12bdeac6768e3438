"""One Kafka connection: find the handler of each request, time it, answer it.

The handlers' table is the one source of what is spoken: ApiVersions answers from it.

Where peers have to say who they are, one is a `Guest`: until that is known, nothing is answered but what it needs to
prove it. Whom a certificate names is served as that one for as long as it begins no login; from then on it is like
anybody who has not logged in yet. What only brokers may ask is there for brokers alone.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from penstock.engine.access import BROKERS, Subject
from penstock.engine.acting.acting import Scope
from penstock.net.connection import Answer, Connection, Part, PeerError
from penstock.observe.logs import get_logger
from penstock.observe.stats import RequestStats
from penstock.ports.clock import Clock
from penstock.protocols.kafka import fetch_codec, produce_codec, share_codec
from penstock.protocols.kafka.fetch_sessions import MAX_ERRORS
from penstock.protocols.kafka.handlers import (
    Caller,
    Context,
    Fields,
    Handle,
    Told,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
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
    penstock_verb,
    produce,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
)
from penstock.protocols.kafka.share_sessions import Peer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import decode_client_id, decode_head, encode_response_head, skip_client_id
from penstock.protocols.kafka_wire.guest import Guest, OwnApi, peer_host
from penstock.protocols.kafka_wire.messages import Message, Schema, decode, decode_in_steps, encode, schema_of

log_ = get_logger("kafka")

_LARGEST_SMALL_REQUEST = 2 << 20  # every request but Produce
_DECODED_AT_ONCE = 8 * 1024  # bytes: at most 4 ms, if they are topics with a letter for a name
_LARGE_FETCH = 32 * 1024
_TOPIC_AUTHORIZATION_FAILED = 29
PROTOCOL = "kafka"


class Route(NamedTuple):
    """An API, and what serves its requests: called with the session, the frame, where in it the client id begins,
    version, correlation id, the answer, and the API's figures. Raises `PeerError`."""

    api: Api
    serve: "Callable[[KafkaSession, memoryview, int, int, int, Answer, RequestStats], None]"


class _Asked(NamedTuple):
    """A request that is read by its schema, on the way to its answer."""

    api: Api
    version: int
    correlation_id: int
    answer: Answer
    stats: RequestStats
    body: bytes = b""
    """Of a request whose answer is kept."""
    revision: int = -1
    """Of the topics, when it came."""
    scope: Scope = (-1, None)
    """Of who sent it, likewise."""


class KafkaSession:
    """The session of one connection; see `net.connection.Session`.

    Args:
        guest: the peer, if it has to prove who it is.
    """

    __slots__ = (
        "_acting",
        "_clock",
        "_connection",
        "_context",
        "_fetches",
        "_guest",
        "_is_broker",
        "_is_known",
        "_reading",
        "_replica_id",
        "_routes",
        "_share_peer",
        "_stats",
        "_tasks",
    )

    def __init__(self, context: Context, connection: Connection, clock: Clock, guest: Guest | None = None) -> None:
        self._guest = guest
        self._is_broker = False
        self._is_known = False
        self._acting = context.acting_as(_nobody(context, connection))
        self._routes = _ROUTES if guest is None else _BEFORE_LOGIN
        self._context = context
        if guest is not None and guest.subject is not None:
            self._let_in(guest, guest.subject)
            if guest.login is not None:
                self._routes = {**self._routes, **_BEGINS_LOGIN}
        self._connection = connection
        self._clock = clock
        self._stats: dict[int, RequestStats] = {}
        self._fetches: list[fetch.Fetch] = []
        self._reading: asyncio.Task[None] | None = None
        self._replica_id = -1
        self._share_peer = Peer()
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, frame: memoryview, answer: Answer) -> None:
        key, version, correlation_id, position = decode_head(frame)
        route = self._routes.get(key)
        if route is None:
            raise self._no_route(key)
        api = route.api
        if not api.oldest <= version <= api.newest:
            self._wrong_version(api, version, correlation_id, answer)
            return
        stats = self._stats.get(key)
        if stats is None:
            stats = self._stats[key] = self._context.stats.request(PROTOCOL, api.name)
        answer.time(stats.latency, self._clock.monotonic())
        route.serve(self, frame, position, version, correlation_id, answer, stats)

    def _no_route(self, key: int) -> PeerError:
        known = _ROUTES.get(key)
        if known is None:
            return PeerError(f"unknown API key {key}")
        return PeerError(f"{known.api.name} from a peer that has not proved who it is")

    def _handle_produce(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        start = skip_client_id(frame, position, flexible=version >= produce_codec.FLEXIBLE_FROM)
        produce.handle(self._context, self._acting, frame, start, version, correlation_id, answer)

    def _handle_fetch(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        start = skip_client_id(frame, position, flexible=version >= fetch_codec.FLEXIBLE_FROM)
        most = fetch_codec.MAX_PARTITIONS
        if len(frame) > _LARGE_FETCH and not self._is_broker:  # what is not to be seen here costs as much as what is
            most = 2 * (self._acting.topics.partition_count + MAX_ERRORS)
        request = fetch_codec.decode(frame, start, version, most)
        if request.replica_id >= 0 and not self._is_broker:
            body = fetch_codec.encode_refusal(request, version, _TOPIC_AUTHORIZATION_FAILED)  # as Kafka does
            self._send(fetch.API, version, correlation_id, body, answer)
            return
        self._replica_id = request.replica_id
        under_way = fetch.Fetch(self._context, self._acting, request, version, correlation_id, answer)
        under_way.start()
        if not under_way.over:
            self._fetches = [other for other in self._fetches if not other.over]
            self._fetches.append(under_way)

    def _handle_share_fetch(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        start = _open_flexible(share_fetch.API, frame, position)
        request = share_codec.decode_fetch(frame, start, version)
        under_way = share_fetch.ShareFetch(
            self._context, self._acting, request, correlation_id, answer, self._share_peer
        )
        failed = partial(self._failed, share_fetch.API, version, stats)
        self._context.shares.begin(self._share_peer, under_way, failed)

    def _handle_share_acknowledge(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        start = _open_flexible(share_acknowledge.API, frame, position)
        request = share_codec.decode_acknowledge(frame, start, version)
        under_way = share_acknowledge.ShareAcknowledge(
            self._context, self._acting, request, version, correlation_id, answer
        )
        failed = partial(self._failed, share_acknowledge.API, version, stats)
        self._context.shares.begin(self._share_peer, under_way, failed)

    def _handle_metadata(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        api = metadata.API
        schema, start = _open(api, frame, position, version)
        if self._context.is_isolated():  # an answer would keep the client here: it asks whom it has a connection to
            raise PeerError("this broker is cut off from the cluster; clients ask others who leads")
        revision = self._acting.topics.revision
        scope = self._acting.rights.scope
        kept = self._context.metadata_answers.get(revision, scope, version, frame[start:])
        if kept is not None:
            self._send(api, version, correlation_id, kept, answer)
            return
        asked = _Asked(api, version, correlation_id, answer, stats, bytes(frame[start:]), revision, scope)
        caller = self._caller(frame, position)
        self._ask(asked, lambda request: metadata.handle(self._context, request, version, caller), schema, frame, start)

    def _caller(self, frame: memoryview, position: int) -> Caller:
        login = self._guest.login if self._guest is not None else None
        # The address is written as Java writes one.
        host = f"/{self._acting.subject.host or peer_host(self._connection)}"
        return Caller(self._acting, decode_client_id(frame, position), host, self._is_broker, login)

    def _ask(
        self, asked: _Asked, call: Callable[[Message], Told], schema: Schema, frame: memoryview, start: int
    ) -> None:
        """Have a request handled and answered whose body begins at `start`, at once or in a task."""
        api = asked.api
        is_large = len(frame) - start > _DECODED_AT_ONCE
        waits = (api.is_slow or (is_large and not api.parks)) and not self._is_broker
        result: Told
        if is_large:
            kept = memoryview(bytes(frame[start:]))  # the frame's memory is the next request's when this returns
            result = self._in_steps(call, schema, kept, waits)
            self._connection.busy()
        else:
            request = decode(schema, frame, start)
            at_once = not api.is_slow or self._context.turns.take()
            result = call(request) if at_once else self._in_turn(call, request)
        if isinstance(result, dict):
            self._reply(api, asked.version, asked.correlation_id, result, asked.answer)
            return
        told = cast(Coroutine[Any, Any, Fields], result)
        task = self._start(self._finish(told, asked))
        if waits:
            self._wait_for(task, told, api)

    async def _in_turn(self, call: Callable[[Message], Told], request: Message) -> Fields:
        await self._context.turns.next()
        result = call(request)
        return await result if isinstance(result, Coroutine) else result

    async def _in_steps(self, call: Callable[[Message], Told], schema: Schema, body: memoryview, waits: bool) -> Fields:
        """The same for a request that takes long to read; the next one must not be begun before it."""
        turns = self._context.turns
        await turns.next()
        request = await decode_in_steps(schema, body, turns.next)
        del body
        result = call(request)
        del request  # it is the handler's, which may let go of it and go on for long
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

    async def _finish_own(
        self, parts: Coroutine[Any, Any, Sequence[Part]], api: Api, answer: Answer, stats: RequestStats
    ) -> None:
        try:
            answer.send(await parts)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            self._failed(api, api.newest, stats)

    async def _finish(self, result: Coroutine[Any, Any, Fields], asked: _Asked) -> None:
        try:
            fields = await result
            body = self._reply(asked.api, asked.version, asked.correlation_id, fields, asked.answer)
            if asked.body and fields["lasts"]:
                self._context.metadata_answers.put(asked.revision, asked.scope, asked.version, asked.body, body)
        except PeerError as error:
            self._connection.refuse(error)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            self._failed(asked.api, asked.version, asked.stats)

    def _failed(self, api: Api, version: int, stats: RequestStats) -> None:
        stats.errors += 1
        log_.limited("bug").exception("request failed", api=api.name, version=version, peer=self._connection.peer)
        self._connection.abort()

    def _reply(self, api: Api, version: int, correlation_id: int, fields: Fields, answer: Answer) -> bytes:
        body = encode(schema_of(api.name, version, "response"), fields)
        self._send(api, version, correlation_id, body, answer)
        guest = self._guest
        if guest is not None and not self._is_known:
            guest.answered()
            if guest.subject is not None:
                self._let_in(guest, guest.subject)
        return body

    def _let_in(self, guest: Guest, subject: Subject) -> None:
        self._is_known = True
        self._is_broker = subject is BROKERS
        self._acting = self._context.acting_as(subject)
        # What only brokers may ask is never advertised; on other connections there is no such thing.
        self._routes = {**{key: _own(own) for key, own in guest.own_apis.items()}, **_ROUTES}

    def _begin_login(self, answer: Answer) -> None:
        """The certificate counts no more. Raises `PeerError`."""
        guest = self._guest
        assert guest is not None
        if not self._connection.owes_only(answer):
            raise PeerError("a login while requests are unanswered that came before it")
        guest.begin_login()
        self._is_known = False
        self._acting = self._context.acting_as(_nobody(self._context, self._connection))
        self._routes = _BEFORE_LOGIN

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
        self._context.shares.disconnected(self._share_peer)
        if self._guest is not None:
            self._guest.disconnected()
        if self._reading is not None:
            self._reading.cancel()
        if self._replica_id >= 0:
            self._context.broker_lost(self._replica_id)
        # What changes something goes on: a topic half created is worse than one nobody is told of.


def _nobody(context: Context, connection: Connection) -> Subject:
    return Subject(host=peer_host(connection), door=context.listener)


def _open(api: Api, frame: memoryview, position: int, version: int) -> tuple[Schema, int]:
    """The schema of a request, and where its body begins. Raises `PeerError`."""
    if len(frame) > _LARGEST_SMALL_REQUEST:
        raise PeerError(f"{api.name} request of {len(frame)} bytes; allowed: {_LARGEST_SMALL_REQUEST}")
    schema = schema_of(api.name, version, "request")
    return schema, skip_client_id(frame, position, flexible=schema.flexible)


def _open_flexible(api: Api, frame: memoryview, position: int) -> int:
    """Where the body of a request begins that is read by hand, and is flexible in all versions. Raises `PeerError`."""
    if len(frame) > _LARGEST_SMALL_REQUEST:
        raise PeerError(f"{api.name} request of {len(frame)} bytes; allowed: {_LARGEST_SMALL_REQUEST}")
    return skip_client_id(frame, position, flexible=True)


def _plain(api: Api, handle: Handle) -> Route:
    """Read by its schema."""

    def serve(
        session: KafkaSession,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        schema, start = _open(api, frame, position, version)
        asked = _Asked(api, version, correlation_id, answer, stats)
        context, caller = session._context, session._caller(frame, position)
        session._ask(asked, lambda request: handle(context, request, version, caller), schema, frame, start)

    return Route(api, serve)


def _own(own: OwnApi) -> Route:
    def serve(
        session: KafkaSession,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        start = skip_client_id(frame, position, flexible=False)
        session._start(session._finish_own(own.begin(frame[start:], correlation_id), own.api, answer, stats))

    return Route(own.api, serve)


def _beginning_login(route: Route) -> Route:
    def serve(
        session: KafkaSession,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        answer: Answer,
        stats: RequestStats,
    ) -> None:
        session._begin_login(answer)
        route.serve(session, frame, position, version, correlation_id, answer, stats)

    return Route(route.api, serve)


_TABLE: tuple[Route, ...] = (
    Route(produce.API, KafkaSession._handle_produce),
    Route(fetch.API, KafkaSession._handle_fetch),
    _plain(list_offsets.API, list_offsets.handle),
    Route(metadata.API, KafkaSession._handle_metadata),
    _plain(find_coordinator.API, find_coordinator.handle),
    _plain(api_versions.API, api_versions.handle),
    _plain(sasl_handshake.API, sasl_handshake.handle),
    _plain(sasl_authenticate.API, sasl_authenticate.handle),
    _plain(create_topics.API, create_topics.handle),
    _plain(delete_topics.API, delete_topics.handle),
    _plain(init_producer_id.API, init_producer_id.handle),
    _plain(offset_for_leader_epoch.API, offset_for_leader_epoch.handle),
    _plain(delete_records.API, delete_records.handle),
    _plain(create_partitions.API, create_partitions.handle),
    _plain(describe_configs.API, describe_configs.handle),
    _plain(alter_configs.API, alter_configs.handle),
    _plain(incremental_alter_configs.API, incremental_alter_configs.handle),
    _plain(list_config_resources.API, list_config_resources.handle),
    _plain(describe_cluster.API, describe_cluster.handle),
    _plain(describe_topic_partitions.API, describe_topic_partitions.handle),
    _plain(describe_log_dirs.API, describe_log_dirs.handle),
    _plain(describe_producers.API, describe_producers.handle),
    _plain(join_group.API, join_group.handle),
    _plain(sync_group.API, sync_group.handle),
    _plain(heartbeat.API, heartbeat.handle),
    _plain(leave_group.API, leave_group.handle),
    _plain(consumer_group_heartbeat.API, consumer_group_heartbeat.handle),
    _plain(consumer_group_describe.API, consumer_group_describe.handle),
    _plain(share_group_heartbeat.API, share_group_heartbeat.handle),
    _plain(share_group_describe.API, share_group_describe.handle),
    _plain(describe_share_group_offsets.API, describe_share_group_offsets.handle),
    _plain(alter_share_group_offsets.API, alter_share_group_offsets.handle),
    _plain(delete_share_group_offsets.API, delete_share_group_offsets.handle),
    Route(share_fetch.API, KafkaSession._handle_share_fetch),
    Route(share_acknowledge.API, KafkaSession._handle_share_acknowledge),
    _plain(offset_commit.API, offset_commit.handle),
    _plain(offset_fetch.API, offset_fetch.handle),
    _plain(offset_delete.API, offset_delete.handle),
    _plain(list_groups.API, list_groups.handle),
    _plain(describe_groups.API, describe_groups.handle),
    _plain(delete_groups.API, delete_groups.handle),
    _plain(add_partitions_to_txn.API, add_partitions_to_txn.handle),
    _plain(add_offsets_to_txn.API, add_offsets_to_txn.handle),
    _plain(end_txn.API, end_txn.handle),
    _plain(txn_offset_commit.API, txn_offset_commit.handle),
    _plain(write_txn_markers.API, write_txn_markers.handle),
    _plain(describe_transactions.API, describe_transactions.handle),
    _plain(list_transactions.API, list_transactions.handle),
    _plain(elect_leaders.API, elect_leaders.handle),
    _plain(alter_partition_reassignments.API, alter_partition_reassignments.handle),
    _plain(list_partition_reassignments.API, list_partition_reassignments.handle),
    _plain(unregister_broker.API, unregister_broker.handle),
    _plain(describe_acls.API, describe_acls.handle),
    _plain(create_acls.API, create_acls.handle),
    _plain(delete_acls.API, delete_acls.handle),
    _plain(describe_user_scram_credentials.API, describe_user_scram_credentials.handle),
    _plain(alter_user_scram_credentials.API, alter_user_scram_credentials.handle),
)
APIS: tuple[Api, ...] = tuple(route.api for route in _TABLE)
_UNTOLD: tuple[Route, ...] = (_plain(penstock_verb.API, penstock_verb.handle),)
"""Served as all others, and not among those that ApiVersions tells of: no client of Kafka's knows them."""
_ROUTES = {route.api.key: route for route in (*_TABLE, *_UNTOLD)}
_BEGINS_LOGIN = {api.key: _beginning_login(_ROUTES[api.key]) for api in (sasl_handshake.API, sasl_authenticate.API)}
_BEFORE_LOGIN = {api.key: _ROUTES[api.key] for api in (api_versions.API, sasl_handshake.API, sasl_authenticate.API)}
