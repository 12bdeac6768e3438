"""What etcd alone does to a metadata store: members that die, hang or are put back, rights, certificates."""

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from tests.etcd import Certificates, Etcd

from penstock.cluster.metadata import etcd as etcd_store
from penstock.cluster.metadata import etcd_watch
from penstock.cluster.metadata.etcd import Address, EtcdStore, Tls
from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import Change, LeaseLost, MetadataConflict, MetadataUnavailable, WatchLost

PATIENCE_S = 60


def closing(watch: Any) -> aclosing[Any]:
    """The port promises an iterator; what a store gives can be closed."""
    return aclosing(watch)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as running:
        yield running


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path, members=3) as running:
        yield running


@pytest.fixture
async def store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    opened = await EtcdStore.open(etcd.url, timeout_s=1.0)
    yield opened
    await opened.close()


async def eventually(what: Callable[[], Awaitable[Any]]) -> Any:
    """What it gives once the store is available again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(MetadataUnavailable):
                return await what()


async def until(holds: Callable[..., bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def lost(changes: AsyncIterator[list[Change]]) -> str:
    """Why the watch ended."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(WatchLost) as caught:
            async for _ in changes:
                pass
    return str(caught.value)


# --- addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("etcd://a:1", Address(("a:1",), "/penstock/", False)),
        ("etcd://a,b:2/", Address(("a:2379", "b:2"), "/penstock/", False)),
        ("etcds://[::1]:5,[::2]/one/two", Address(("[::1]:5", "[::2]:2379"), "/one/two/", True)),
    ],
)
def test_an_address_names_members_prefix_and_tls(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    "url", ["a:1", "http://a:1", "etcd://", "etcd://a:1,,b:2", "etcd://a:x", "etcd://a:70000", "etcd://me:secret@a:1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StartupError, match="metadata store"):
        Address.parse(url)


def test_grpc_is_not_imported_before_a_store_is_opened() -> None:
    program = "import sys, penstock.cluster.metadata.etcd, penstock.cluster.metadata.etcd_member; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "penstock.cluster.metadata.etcd_member" in done.stdout.split()
    assert not {"grpc", "aetcd", "google.protobuf"} & set(done.stdout.split())


async def test_an_etcd_that_is_not_there_is_named() -> None:
    with pytest.raises(StartupError, match=r"etcd://127\.0\.0\.1:1 did not answer within 0\.3 s.*majority"):
        await EtcdStore.open("etcd://127.0.0.1:1", timeout_s=0.2, patience_s=0.3)


# --- sizes


async def test_answers_and_news_larger_than_grpc_takes_by_itself(store: EtcdStore) -> None:
    values = {f"big/{n}": bytes([n]) * 1_000_000 for n in range(6)}
    for key, value in values.items():
        await store.transact(put={key: value})
    snapshot = await store.snapshot("big/")
    assert {entry.key: entry.value for entry in snapshot.entries} == values
    async with closing(store.watch("big/", 0)) as changes, asyncio.timeout(PATIENCE_S):
        assert [[change.key for change in await anext(changes)] for _ in values] == [[key] for key in values]


async def test_a_snapshot_of_many_pages_is_of_one_revision(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "_PAGE_KEYS", 3)
    first = await store.transact(put={f"k/{n}": b"old" for n in range(10)})
    ranges = store._range

    async def range_and_change(**fields: object) -> object:
        page = await ranges(**fields)
        await store.transact(put={"k/9": b"new", "k/99": b"new"}, delete=["k/8"])
        return page

    monkeypatch.setattr(store, "_range", range_and_change)
    snapshot = await store.snapshot("k/")
    assert [(entry.key, entry.value) for entry in snapshot.entries] == [(f"k/{n}", b"old") for n in range(10)]
    assert snapshot.revision == first


async def test_a_change_that_etcd_finds_too_large(store: EtcdStore) -> None:
    with pytest.raises(PenstockError, match="too large") as caught:
        await store.transact(put={"big": bytes(2_000_000)})
    assert caught.value.code is Code.LIMIT_EXCEEDED
    assert await store.get("big") is None


async def test_stores_with_different_prefixes_do_not_see_each_other(etcd: Etcd, store: EtcdStore) -> None:
    other = await EtcdStore.open(f"{etcd.url}/penstock2")
    await store.transact(put={"a": b"1"})
    await other.transact(put={"a": b"2"})
    assert [entry.value for entry in await store.list("")] == [b"1"]
    await other.close()


# --- members that die or hang


async def test_calls_to_a_hung_etcd_end_in_time(etcd: Etcd, store: EtcdStore) -> None:
    revision = await store.transact(put={"a": b"1"})
    lease = await store.grant(60)
    etcd.pause()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get("a"),
        lambda: store.snapshot(""),
        lambda: store.transact(expect={"a": revision}, put={"a": b"2"}),
        lambda: store.grant(5),
        lambda: store.keep_alive(lease),
        lambda: store.revoke(lease),
    ]
    began = time.monotonic()
    results = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    assert 0.9 < time.monotonic() - began < 5
    assert [type(result) for result in results] == [MetadataUnavailable] * len(calls)
    etcd.resume()
    entry = await eventually(lambda: store.get("a"))
    assert entry is not None


async def test_reads_go_on_beside_a_hung_member_and_changes_after_one_failure(three: Etcd) -> None:
    follower = (three.leader() + 1) % 3
    others = [endpoint for endpoint in three.endpoints if endpoint != three.endpoints[follower]]
    store = await EtcdStore.open(f"etcd://{','.join([three.endpoints[follower], *others])}", timeout_s=2.0)
    await store.transact(put={"a": b"1"})
    three.pause(follower)
    with pytest.raises(MetadataUnavailable, match=f"{three.endpoints[follower]} did not answer in time"):
        await store.transact(put={"b": b"1"})
    await store.transact(expect={"b": 0}, put={"b": b"2"})
    store._endpoints._turn = 0
    entry = await store.get("b")
    assert entry is not None and entry.value == b"2"
    three.resume(follower)
    await store.close()


async def test_who_has_no_patience_with_a_hung_member_is_answered_by_the_next_one(three: Etcd) -> None:
    """A lease is kept alive with less patience than a call has by itself."""
    follower = (three.leader() + 1) % 3
    others = [endpoint for endpoint in three.endpoints if endpoint != three.endpoints[follower]]
    store = await EtcdStore.open(f"etcd://{','.join([three.endpoints[follower], *others])}", timeout_s=20.0)
    lease = await store.grant(60)
    three.pause(follower)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await store.keep_alive(lease)
    async with asyncio.timeout(9):
        await store.keep_alive(lease)
    three.resume(follower)
    await store.close()


class Broken:
    """The key-value service of a member whose connection breaks at changes."""

    def __init__(self, service: Any, details: str, *, answers: bool) -> None:
        self._service, self._details, self._answers = service, details, answers

    async def Txn(self, request: Any, **options: Any) -> None:  # noqa: N802 - gRPC's name
        if not self._answers:
            await self._service.Txn(request, **options)
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, self._details)


async def test_a_change_whose_answer_is_lost_is_not_made_again(etcd: Etcd) -> None:
    store = await EtcdStore.open(f"{etcd.url},{etcd.endpoints[0]}")
    member = store._endpoints.current()
    member.kv = Broken(member.kv, "Socket closed", answers=False)
    with pytest.raises(MetadataUnavailable, match="Socket closed"):
        await store.transact(expect={"a": 0}, put={"a": b"1"})
    assert store._endpoints.current() is not member
    entry = await store.get("a")
    assert entry is not None and entry.value == b"1"
    await store.close()


class Refusing:
    """The key-value service of a member that refuses connections, and once more is too slow to do even that."""

    def __init__(self) -> None:
        self.asked = 0

    async def Range(self, request: Any, **options: Any) -> None:  # noqa: N802 - gRPC's name
        self.asked += 1
        nothing = grpc.aio.Metadata()
        if self.asked == 1:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "CERTIFICATE_VERIFY_FAILED")
        await asyncio.sleep(options["timeout"])
        raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, nothing, nothing, "Deadline Exceeded")


async def test_an_attempt_cut_short_does_not_hide_why_the_others_failed(etcd: Etcd) -> None:
    store = await EtcdStore.open(etcd.url, timeout_s=1.0)
    member = store._endpoints.current()
    member.kv = refusing = Refusing()
    with pytest.raises(MetadataUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await store.get("a")
    assert refusing.asked > 1
    await store.close()


@pytest.mark.parametrize(
    "details", ["failed to connect to all addresses; last error: refused", "etcdserver: no leader"]
)
async def test_a_change_that_never_left_goes_to_the_next_member(etcd: Etcd, details: str) -> None:
    store = await EtcdStore.open(f"{etcd.url},{etcd.endpoints[0]}")
    member = store._endpoints.current()
    member.kv = Broken(member.kv, details, answers=True)
    await store.transact(expect={"a": 0}, put={"a": b"1"})
    await store.close()


async def test_a_killed_member_is_left_for_the_next(three: Etcd) -> None:
    store = await EtcdStore.open(three.url)
    lease = await store.grant(60)
    await store.transact(put_leased={"leased": b"1"}, lease=lease)
    for member in (0, 1, 2):
        three.kill(member)
        # Refused connections carry nothing, so changes are made elsewhere at once, once there is a leader.
        await eventually(lambda: store.transact(put={"a": b"1"}))
        await eventually(lambda: store.keep_alive(lease))
        assert await eventually(lambda: store.get("leased"))
        three.start(member)
    await store.close()


async def test_no_majority_is_no_answer(three: Etcd) -> None:
    store = await EtcdStore.open(three.url, timeout_s=1.0)
    await store.transact(put={"a": b"1"})
    three.kill(1)
    three.kill(2)
    for call in (store.get("a"), store.transact(put={"a": b"2"}), store.grant(5)):
        with pytest.raises(MetadataUnavailable):
            await call
    three.start(1)
    entry = await eventually(lambda: store.get("a"))
    assert entry is not None
    await store.close()


async def test_increments_while_the_leader_is_killed_are_each_made_once(three: Etcd) -> None:
    """The counter ends between what was acknowledged and that plus what nobody knows."""
    store = await EtcdStore.open(three.url, timeout_s=1.0)
    await store.transact(put={"n": b"0"})
    acknowledged = unknown = 0
    stop = asyncio.Event()

    async def increment() -> None:
        nonlocal acknowledged, unknown
        while not stop.is_set():
            try:
                entry = await store.get("n")
            except MetadataUnavailable:
                continue
            assert entry is not None
            try:
                await store.transact(expect={"n": entry.revision}, put={"n": b"%d" % (int(entry.value) + 1)})
                acknowledged += 1
            except MetadataConflict:
                pass
            except MetadataUnavailable:
                unknown += 1

    workers = [asyncio.create_task(increment()) for _ in range(3)]
    for _ in range(3):
        leader = await asyncio.to_thread(three.leader)
        await asyncio.to_thread(three.kill, leader)
        wanted = acknowledged + 20
        await until(lambda wanted=wanted: acknowledged >= wanted)
        await asyncio.to_thread(three.start, leader)
    stop.set()
    await asyncio.gather(*workers)
    final = await eventually(lambda: store.get("n"))
    assert acknowledged <= int(final.value) <= acknowledged + unknown
    assert acknowledged > 60
    await store.close()


async def test_a_member_of_another_cluster_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Etcd(tmp_path / "one") as one, Etcd(tmp_path / "two") as two:
        store = await EtcdStore.open(f"{one.url},{two.endpoints[0]}", timeout_s=1.0)
        await store.transact(put={"a": b"1"})
        one.kill()
        with pytest.raises(MetadataUnavailable, match="belongs to cluster"):
            await store.get("a")
        await store.close()


# --- watches


async def test_a_watch_on_which_nothing_happens_goes_on(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watch, "_QUIET_S", 0.05)
    revision = await store.transact(put={"a": b"1"})
    async with closing(store.watch("", revision)) as changes:
        pending = asyncio.ensure_future(anext(changes))
        assert not (await asyncio.wait({pending}, timeout=2.0))[0]  # twice the time of a call, and 20 questions
        revision = await store.transact(put={"a": b"2"})
        assert await pending == [Change("a", b"2", revision)]


async def test_a_watch_of_a_hung_etcd_is_lost(etcd: Etcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watch, "_QUIET_S", 0.1)
    await store.transact(put={"a": b"1"})
    changes: Any = store.watch("", 0)
    await anext(changes)
    etcd.pause()
    assert "no answer for 1 s" in await lost(changes)


async def test_a_watch_goes_on_where_it_was_after_a_restart(etcd: Etcd, store: EtcdStore) -> None:
    await store.transact(put={"a": b"1"})
    changes: Any = store.watch("", 0)
    seen = (await anext(changes))[0].revision
    etcd.kill()
    assert etcd.endpoints[0] in await lost(changes)
    await asyncio.to_thread(etcd.start)
    made = [await eventually(lambda: store.transact(put={"a": b"2"})), await store.transact(delete=["a"])]
    async with closing(store.watch("", seen)) as again, asyncio.timeout(PATIENCE_S):
        assert [await anext(again), await anext(again)] == [
            [Change("a", b"2", made[0])],
            [Change("a", None, made[1])],
        ]


async def test_a_watch_of_a_member_cut_off_from_the_others_is_lost(three: Etcd) -> None:
    store = await EtcdStore.open(three.url)
    await store.transact(put={"a": b"1"})
    changes: Any = store.watch("", 0)
    await anext(changes)
    three.kill(1)
    three.kill(2)
    assert "no leader" in await lost(changes)
    await store.close()


async def test_a_watch_of_forgotten_changes_is_lost(etcd: Etcd, store: EtcdStore) -> None:
    for value in (b"1", b"2", b"3"):
        revision = await store.transact(put={"a": value})
    etcd.ctl("compact", str(revision))
    assert "forgotten" in await lost(store.watch("", revision - 2))
    async with closing(store.watch("", revision)) as changes, asyncio.timeout(PATIENCE_S):
        next_revision = await store.transact(put={"a": b"4"})
        assert await anext(changes) == [Change("a", b"4", next_revision)]


async def test_an_old_copy_shows_a_lower_revision_and_ends_watches(
    etcd: Etcd, store: EtcdStore, tmp_path: Path
) -> None:
    await store.transact(put={"a": b"1"})
    etcd.save(tmp_path / "backup")
    for _ in range(5):
        await store.transact(put={"a": b"2"})
    known = await store.snapshot("")
    etcd.restore(tmp_path / "backup")
    old = await eventually(lambda: store.snapshot(""))
    assert old.revision < known.revision and [entry.value for entry in old.entries] == [b"1"]
    assert "an old copy was put back" in await lost(store.watch("", known.revision))


async def test_a_watch_that_nobody_wants_leaves_no_stream(etcd: Etcd, store: EtcdStore) -> None:
    def streams() -> float:
        with urllib.request.urlopen(f"http://{etcd.endpoints[0]}/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(
            float(line.split()[1]) for line in lines if line.startswith("etcd_debugging_mvcc_watch_stream_total")
        )

    async def read(changes: AsyncIterator[list[Change]]) -> None:
        async for _ in changes:
            pass

    await store.transact(put={"a": b"1"})
    changes: Any = store.watch("", 0)
    await anext(changes)
    tasks = [asyncio.create_task(read(store.watch("", 0))) for _ in range(3)]
    await until(lambda: streams() == 4)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
    await changes.aclose()
    await until(lambda: streams() == 0)
    assert not store._endpoints.streams


async def test_closing_ends_watches_and_calls_under_way(etcd: Etcd) -> None:
    store = await EtcdStore.open(etcd.url)
    revision = await store.transact(put={"a": b"1"})
    watching = asyncio.ensure_future(anext(store.watch("", revision)))
    await until(lambda: bool(store._endpoints.streams))
    etcd.pause()
    calling = asyncio.ensure_future(store.get("a"))
    await asyncio.sleep(0)
    await store.close()
    assert [type(end) for end in await asyncio.gather(watching, calling, return_exceptions=True)] == [
        WatchLost,
        MetadataUnavailable,
    ]
    with pytest.raises(MetadataUnavailable, match="closed"):
        await store.get("a")
    assert "closed" in await lost(store.watch("", 0))


def test_all_of_it_on_the_broker_s_event_loop(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watch, "_QUIET_S", 0.1)

    async def play() -> None:
        store = await EtcdStore.open(etcd.url, timeout_s=1.0)
        lease = await store.grant(60)
        revision = await store.transact(expect={"a": 0}, put={"a": b"1"}, put_leased={"b": b"2"}, lease=lease)
        with pytest.raises(MetadataConflict):
            await store.transact(expect={"a": 0}, put={"a": b"1"})
        changes: Any = store.watch("", revision)
        await store.keep_alive(lease)
        await store.revoke(lease)
        assert await anext(changes) == [Change("b", None, revision + 1)]
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        etcd.pause()
        with pytest.raises(MetadataUnavailable):
            await store.get("a")
        await lost(changes)
        etcd.resume()
        assert await eventually(lambda: store.get("a"))
        await store.close()

    uvloop.run(play())


# --- who may


@pytest.fixture
def guarded(etcd: Etcd) -> Etcd:
    return guard(etcd)


def guard(etcd: Etcd) -> Etcd:
    """Ask for users from now on: root, one who may do everything here, one who may read, and a stranger."""
    for user, password in (("root", "rootpw"), ("broker", "right"), ("reader", "right"), ("stranger", "right")):
        etcd.ctl("user", "add", f"{user}:{password}")
    for role, right in (("writes", "readwrite"), ("reads", "read")):
        etcd.ctl("role", "add", role)
        etcd.ctl("role", "grant-permission", role, "--prefix=true", right, "/penstock/")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("user", "grant-role", "broker", "writes")
    etcd.ctl("user", "grant-role", "reader", "reads")
    etcd.ctl("auth", "enable")
    etcd.user = "root:rootpw"
    return etcd


@pytest.mark.parametrize(
    ("user", "password", "text"),
    [
        ("broker", "wrong", "invalid user ID or password.*'broker'"),
        ("nobody", "right", "invalid user ID or password.*'nobody'"),
        ("stranger", "right", "permission denied.*grant-permission ROLE --prefix=true readwrite /penstock/"),
        ("reader", "right", "permission denied.*'reader'"),
        ("", "", "set name and password"),
    ],
)
async def test_a_user_without_rights_is_told_at_the_start(guarded: Etcd, user: str, password: str, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        await EtcdStore.open(guarded.url, user=user, password=password)


async def test_a_user_where_nobody_is_asked_for_one(etcd: Etcd) -> None:
    with pytest.raises(StartupError, match="authentication is not enabled"):
        await EtcdStore.open(etcd.url, user="broker", password="right")  # noqa: S106


def jwt(directory: Path) -> str:
    """The option for tokens that carry the revision of the rights, as is advised for production."""
    private, public = directory / "jwt.pem", directory / "jwt.pub"
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)
    return f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m"


@pytest.mark.parametrize("kind", ["simple", "jwt"])
async def test_a_token_that_is_refused_is_renewed(tmp_path: Path, kind: str) -> None:
    with Etcd(tmp_path, arguments=[jwt(tmp_path)] if kind == "jwt" else []) as etcd:
        guard(etcd)
        store = await EtcdStore.open(etcd.url, user="broker", password="right")  # noqa: S106
        lease = await store.grant(60)
        etcd.ctl("auth", "disable")  # forgets simple tokens, and changes the rights' revision
        etcd.ctl("auth", "enable")
        token = store._endpoints._token
        revision = await store.transact(expect={"a": 0}, put={"a": b"1"})
        assert store._endpoints._token != token
        await store.keep_alive(lease)
        async with closing(store.watch("", 0)) as changes, asyncio.timeout(PATIENCE_S):
            assert await anext(changes) == [Change("a", b"1", revision)]
        await store.close()


async def test_rights_that_are_taken_away(guarded: Etcd) -> None:
    store = await EtcdStore.open(guarded.url, user="broker", password="right")  # noqa: S106
    guarded.ctl("user", "revoke-role", "broker", "writes")
    with pytest.raises(MetadataUnavailable, match="permission denied"):
        await store.transact(put={"a": b"1"})
    assert "permission denied" in await lost(store.watch("", 0))
    await store.close()


# --- certificates


def certificates(directory: Path) -> Certificates:
    """An authority of its own, and one certificate for servers and clients."""
    directory.mkdir(exist_ok=True)
    made = Certificates(*(directory / name for name in ("ca.pem", "cert.pem", "key.pem")))
    ca_key, request = directory / "ca-key.pem", directory / "request.pem"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
    _openssl("req", "-x509", *new_key, ca_key, "-out", made.authority, "-subj", "/CN=authority", "-days", "2")
    _openssl(
        "req", *new_key, made.key, "-out", request, "-subj", "/CN=member", "-addext", "subjectAltName=IP:127.0.0.1"
    )
    signed = ("-CA", made.authority, "-CAkey", ca_key, "-CAcreateserial", "-copy_extensions", "copy", "-days", "2")
    _openssl("x509", "-req", "-in", request, "-out", made.certificate, *signed)
    return made


def _openssl(*words: "str | Path") -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


async def test_tls_both_ways(tmp_path: Path) -> None:
    files = certificates(tmp_path / "tls")
    stranger = certificates(tmp_path / "other")
    with Etcd(tmp_path, tls=files) as etcd:
        store = await EtcdStore.open(etcd.url, tls=Tls(*map(str, files)))
        revision = await store.transact(put={"a": b"1"})
        async with closing(store.watch("", 0)) as changes:
            assert await anext(changes) == [Change("a", b"1", revision)]
        await store.close()
        plain, url = etcd.url.replace("etcds", "etcd"), etcd.url
        wrong = [
            (url, Tls(authority=str(files.authority)), "etcd wants a certificate"),
            (url, Tls(str(files.authority), str(stranger.certificate), str(stranger.key)), "etcd wants a certificate"),
            (url, Tls(str(stranger.authority), str(files.certificate), str(files.key)), "CERTIFICATE_VERIFY_FAILED"),
            (url, Tls(), "CERTIFICATE_VERIFY_FAILED"),
            (plain, None, "Socket closed"),
        ]

        async def is_refused(url: str, tls: Tls | None, text: str) -> None:
            with pytest.raises(StartupError, match=text):
                await EtcdStore.open(url, tls=tls, timeout_s=3.0, patience_s=0)

        await asyncio.gather(*(is_refused(*each) for each in wrong))  # each takes as long as its patience lasts


async def test_a_certificate_file_that_is_missing_is_named() -> None:
    with pytest.raises(StartupError, match=r"certificates cannot be read.*/no/such/ca\.pem"):
        await EtcdStore.open("etcds://127.0.0.1:1", tls=Tls("/no/such/ca.pem"))


async def test_replaced_certificates_are_used_for_the_next_connection(tmp_path: Path) -> None:
    files = certificates(tmp_path / "tls")
    with Etcd(tmp_path, tls=files) as etcd:
        store = await EtcdStore.open(etcd.url, tls=Tls(*map(str, files)))
        await store.transact(put={"a": b"1"})
        etcd.kill()
        certificates(tmp_path / "tls")
        await asyncio.to_thread(etcd.start)
        assert await eventually(lambda: store.get("a"))
        await store.close()
