"""The trace reader: split calls, threads, and each way in which an ack can leave too early."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.trace import Call, check_synced, find_answer, parse, strace_command, why_not

CORRELATION = 0x5A7E0001
FRAME = "".join(f"\\x{byte:02x}" for byte in struct.pack(">ii", 60, CORRELATION))
LOG = "/d/logs/t/0/00000000000000000000.log"
WRITE = f'10 pwrite64(7<{LOG}>, "\\x00\\x01", 2, 0) = 2'
SYNC = f"11 fdatasync(7<{LOG}>) = 0"
ANSWER = f'10 sendto(9<socket:[5]>, "{FRAME}", 64, 0, NULL, 0) = 64'


def problems(*lines: str) -> list[str]:
    return check_synced(parse(lines), [CORRELATION], "/t/")


def test_a_sync_between_write_and_answer_is_found() -> None:
    assert problems(WRITE, SYNC, ANSWER) == []
    assert problems(WRITE, "11 syncfs(7</d/logs>) = 0", ANSWER) == []


def test_split_calls_are_joined() -> None:
    begun = f'10 pwrite64(7<{LOG}>, "\\x00\\x01", 2, 0 <unfinished ...>'
    calls = parse([begun, SYNC, "10 <... pwrite64 resumed>) = 2", "--- SIGCHLD ---", "12 +++ exited with 0 +++"])
    assert [(call.name, call.thread, call.started, call.ended) for call in calls] == [
        ("pwrite64", 10, 0, 2),
        ("fdatasync", 11, 1, 1),
    ]
    assert calls[0].path == LOG
    assert calls[0].data == b"\0\1"


def test_hex_paths_and_vectors_are_read() -> None:
    path = "".join(f"\\x{byte:02x}" for byte in LOG.encode())
    call = Call(
        "pwritev",
        1,
        0,
        0,
        f'7<{path}>, [{{iov_base="\\x41", iov_len=1}}, {{iov_base="\\x42", iov_len=1}}]',
        "2",
    )
    assert call.path == LOG
    assert call.data == b"AB"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((WRITE, ANSWER), id="no sync"),
        pytest.param((SYNC, WRITE, ANSWER), id="sync before the write"),
        pytest.param((WRITE, ANSWER, SYNC), id="sync after the answer"),
        pytest.param((WRITE, SYNC, WRITE, ANSWER), id="written again after the sync"),
        pytest.param((WRITE, SYNC.replace(" = 0", " = -1 EIO (Input/output error)"), ANSWER), id="sync failed"),
        pytest.param((WRITE, SYNC.replace(" = 0", " = 0 (INJECTED)"), ANSWER), id="sync faked"),
        pytest.param((WRITE, SYNC.replace("/0/", "/1/"), ANSWER), id="another file synced"),
        pytest.param((SYNC, ANSWER), id="no write"),
        pytest.param((WRITE.replace("/t/", "/u/"), SYNC, ANSWER), id="another topic written"),
        pytest.param((WRITE, SYNC), id="no answer"),
        pytest.param(
            (f"11 fdatasync(7<{LOG}> <unfinished ...>", WRITE, "11 <... fdatasync resumed>) = 0", ANSWER),
            id="sync begun before the write",
        ),
        pytest.param(
            (WRITE.replace(") = 2", " <unfinished ...>"), SYNC, "10 <... pwrite64 resumed>) = 2", ANSWER),
            id="write not finished",
        ),
        pytest.param(
            (WRITE, f"11 fdatasync(7<{LOG}> <unfinished ...>", ANSWER, "11 <... fdatasync resumed>) = 0"),
            id="sync not finished",
        ),
        pytest.param((WRITE, WRITE.replace("/0/", "/1/"), SYNC, ANSWER), id="one of two files"),
    ],
)
def test_an_answer_that_leaves_too_early_is_named(lines: tuple[str, ...]) -> None:
    assert len(problems(*lines)) == 1


def test_each_answer_needs_a_write_of_its_own() -> None:
    second = ANSWER.replace("\\x7e\\x00\\x01", "\\x7e\\x00\\x02")
    calls = parse([WRITE, SYNC, ANSWER, second])
    assert check_synced(calls, [CORRELATION, CORRELATION + 1], "/t/") == [
        f"{CORRELATION + 1:#x}: no write to a log before the answer"
    ]


WRITER = """
import os, socket, struct, sys, threading
near, far = socket.socketpair()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
stop = threading.Event()
def noise():
    other = os.open(sys.argv[1] + ".other", os.O_RDWR | os.O_CREAT)
    while not stop.is_set():
        os.pwrite(other, b"noise", 0)
        os.fdatasync(other)
thread = threading.Thread(target=noise)
thread.start()
for index in range(30):
    os.pwrite(fd, b"record", index * 6)
    if index != 17:
        worker = threading.Thread(target=os.fdatasync, args=(fd,))
        worker.start()
        worker.join()
    near.send(struct.pack(">ii", 60, 0x5A7E0000 + index))
stop.set()
thread.join()
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_real_trace_shows_the_one_missing_sync(tmp_path: Path) -> None:
    output = tmp_path / "trace"
    log = tmp_path / "t" / "0.log"
    log.parent.mkdir()
    subprocess.run([*strace_command(output), sys.executable, "-c", WRITER, str(log)], check=True)
    calls = parse(output.read_text().splitlines())
    found = check_synced(calls, [0x5A7E0000 + index for index in range(30)], "/t/")
    assert len(found) == 1
    assert found[0].startswith("0x5a7e0011:")
    assert find_answer(calls, 0x5A7E0000) is not None
