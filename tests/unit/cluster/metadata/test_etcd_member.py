"""An etcd that the broker starts itself: found, checked, started, started again, and never left behind."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.etcd import Port, programs

from penstock.cluster.metadata import etcd_member
from penstock.cluster.metadata.etcd import EtcdStore, Tls
from penstock.cluster.metadata.etcd_member import EtcdMember, MemberAddress, directory_in, parse_members, url_of
from penstock.errors import StartupError
from penstock.ports.metadata import MetadataUnavailable

PATIENCE_S = 60
REUSE = "--socket-reuse-port"  # beside the socket that reserves the port


@contextmanager
def reserved(count: int) -> Iterator[list[MemberAddress]]:
    ports = [(Port(), Port()) for _ in range(count)]
    yield [MemberAddress(n, "127.0.0.1", *(port.number for port in pair)) for n, pair in enumerate(ports, 1)]
    for pair in ports:
        for port in pair:
            port.close()


@pytest.fixture
def alone() -> Iterator[list[MemberAddress]]:
    with reserved(1) as members:
        yield members


def member_of(members: list[MemberAddress], node_id: int, data: Path) -> EtcdMember:
    program = str(programs() / "etcd")
    return EtcdMember(
        node_id, members, directory_in(str(data)), program=program, arguments=[REUSE, "--unsafe-no-fsync"]
    )


async def until(holds: Callable[..., bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


# --- what an operator writes


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("1@a:5:6", MemberAddress(1, "a", 5, 6)),
        ("12@a.example", MemberAddress(12, "a.example", 2379, 2380)),
        ("1@a:5", MemberAddress(1, "a", 5, 2380)),
        ("1@[::1]:5:6", MemberAddress(1, "[::1]", 5, 6)),
        ("1@[::1]", MemberAddress(1, "[::1]", 2379, 2380)),
    ],
)
def test_a_member_is_a_node_a_host_and_two_ports(text: str, member: MemberAddress) -> None:
    assert MemberAddress.parse(text) == member
    assert MemberAddress.parse(str(member)) == member


@pytest.mark.parametrize(
    "text", ["", "a:1:2", "x@a:1:2", "1@", "1@:1:2", "1@a:1:2:3", "1@a:x:2", "1@a:0:2", "1@a:1:70000"]
)
def test_what_is_no_member_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match=r"cluster\.members.*node-id@host:client-port:peer-port"):
        MemberAddress.parse(text)


@pytest.mark.parametrize("texts", [["1@a", "1@b"], ["1@a", "2@a:1:2380"], ["1@a:7:7"], ["1@a:1:2", "2@a:2:3"]])
def test_members_that_are_in_each_other_s_way_are_refused(texts: list[str]) -> None:
    with pytest.raises(StartupError, match="there twice"):
        parse_members(texts)


def test_a_broker_asks_its_own_member_first() -> None:
    members = parse_members(["1@a", "2@b", "3@c:7:8"])
    assert url_of(members, first=3) == "etcd://c:7,a:2379,b:2379"
    assert url_of(members, first=9, is_secure=True) == "etcds://a:2379,b:2379,c:7"


# --- the program


def program_that_says(directory: Path, text: str) -> str:
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("etcd Version: 3.4.23", r"is etcd 3\.4\.23, which is too old"),
        ("etcd Version: ?", r"does not say which.*\?"),
        ("no idea", r"does not say which.*no idea"),
    ],
)
async def test_a_program_that_does_not_do_is_refused(
    tmp_path: Path, alone: list[MemberAddress], said: str, text: str
) -> None:
    member = EtcdMember(1, alone, str(tmp_path / "data"), program=program_that_says(tmp_path, said))
    with pytest.raises(StartupError, match=f"{text}.*Install etcd 3.6 or later"):
        await member.start()
    await member.close()


async def test_a_program_that_is_missing_is_named(
    tmp_path: Path, alone: list[MemberAddress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match=r"no program etcd .*in PATH.*Install etcd"):
        await EtcdMember(1, alone, str(tmp_path / "data")).start()
    with pytest.raises(StartupError, match=r"no program /no/etcd .*Install etcd"):
        await EtcdMember(1, alone, str(tmp_path / "data"), program="/no/etcd").start()


async def test_half_of_tls_is_refused(tmp_path: Path, alone: list[MemberAddress]) -> None:
    with pytest.raises(StartupError, match="all three"):
        await EtcdMember(1, alone, str(tmp_path / "data"), tls=Tls(certificate="c", key="k")).start()


# --- its life


async def test_a_killed_member_comes_back_with_its_data(tmp_path: Path, alone: list[MemberAddress]) -> None:
    async with AsyncExitStack() as stack:
        member = member_of(alone, 1, tmp_path)
        stack.push_async_callback(member.close)
        await member.start()
        store = await EtcdStore.open(url_of(alone, first=1), patience_s=PATIENCE_S)
        stack.push_async_callback(store.close)
        revision = await store.transact(put={"a": b"1"})
        assert (tmp_path / "meta" / "etcd" / "member").is_dir()
        for _ in range(2):
            pid = member.pid
            assert pid is not None and os.getpgid(pid) == pid != os.getpgid(0)
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: member.pid not in (None, pid))
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(MetadataUnavailable):
                        entry = await store.get("a")
                        break
            assert entry is not None and entry.revision == revision
        pid = member.pid
        await member.close()
        assert member.pid is None and not psutil.pid_exists(pid or 0)


async def test_three_members_are_one_store(tmp_path: Path) -> None:
    with reserved(3) as members:
        async with AsyncExitStack() as stack:
            for address in members:
                member = member_of(members, address.node_id, tmp_path / str(address.node_id))
                stack.push_async_callback(member.close)
                await member.start()
            stores = [await EtcdStore.open(url_of(members, first=n), patience_s=PATIENCE_S) for n in (1, 2, 3)]
            await stores[0].transact(put={"a": b"1"})
            assert [len(await store.list("")) for store in stores] == [1, 1, 1]
            for store in stores:
                await store.close()


async def test_a_member_that_cannot_live_is_tried_again_with_pauses(
    tmp_path: Path, alone: list[MemberAddress], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_member, "_FIRST_PAUSE_S", 0.01)
    caplog.set_level(logging.DEBUG, "penstock.cluster.etcd")
    program = tmp_path / "etcd"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "etcd Version: 3.7.3" && exit\necho no luck; exit 3\n')
    program.chmod(0o755)
    member = EtcdMember(1, alone, str(tmp_path / "data"), program=str(program))
    await member.start()
    await until(lambda: sum(record.message == "etcd stopped" for record in caplog.records) >= 3)
    await member.close()
    stops = [vars(record)["penstock_fields"] for record in caplog.records if record.message == "etcd stopped"]
    assert [stop["again_in_s"] for stop in stops[:3]] == [0.01, 0.02, 0.04]
    assert stops[0]["reason"] == "it ended with 3" and stops[0]["said"] == "no luck"
    assert any(record.levelno == logging.DEBUG and record.message == "etcd says" for record in caplog.records)


def test_a_member_dies_with_the_broker(tmp_path: Path, alone: list[MemberAddress]) -> None:
    broker = f"""
import asyncio
from penstock.cluster.metadata.etcd_member import EtcdMember, MemberAddress
async def main():
    member = EtcdMember(1, [MemberAddress(*{tuple(alone[0])})], {str(tmp_path / "etcd")!r},
        program={str(programs() / "etcd")!r}, arguments=[{REUSE!r}])
    await member.start()
    while member.pid is None or b"etcd" not in open(f"/proc/{{member.pid}}/comm", "rb").read():
        await asyncio.sleep(0.01)
    print(member.pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", broker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        etcd = psutil.Process(int(process.stdout.readline()))
        process.kill()
    etcd.wait(PATIENCE_S)
