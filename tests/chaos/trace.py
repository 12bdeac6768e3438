"""Reads strace output and says whether a completed sync lies between each log write and its ack.

The order of lines is the order of events: strace prints a call's first half before the kernel runs it and
the rest after. A call interrupted by another thread's line is split in `<unfinished ...>` and
`<... resumed>`; its start and end are then two lines. So "the sync started after the write ended and ended
before the answer was sent" is a comparison of line numbers, and threads need no clock.
"""

import re
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WRITES = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2"})
SENDS = frozenset({"write", "writev", "sendto", "sendmsg", "sendmmsg"})
FILE_SYNCS = frozenset({"fsync", "fdatasync"})
SYNCS = FILE_SYNCS | {"syncfs", "sync"}

_LINE = re.compile(r"^(?:(?:\[pid +)?(?P<thread>\d+)\]? +)?(?P<rest>.*)$")
_RESUMED = re.compile(r"^<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>.*)$")
_HEX = re.compile(r"\\x([0-9a-fA-F]{2})")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"^\d+<(.*?)>(?:,|$)")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    thread: int
    started: int
    """Line number at which it was entered."""
    ended: int
    """Line number at which it returned."""
    arguments: str
    result: str

    @property
    def succeeded(self) -> bool:
        return not self.result.startswith(("-1", "?"))

    @property
    def injected(self) -> bool:
        return "(INJECTED)" in self.result

    @property
    def path(self) -> str:
        """Of the file whose descriptor is the first argument; empty if strace named none."""
        found = _DESCRIPTOR.match(_HEX.sub(lambda match: chr(int(match[1], 16)), self.arguments))
        return found[1].removesuffix("(deleted)") if found else ""

    @property
    def data(self) -> bytes:
        """The bytes of all its buffers, as far as strace printed them (-xx)."""
        texts = (match[1] for match in _QUOTED.finditer(self.arguments))
        return b"".join(bytes(int(pair, 16) for pair in _HEX.findall(text)) for text in texts)


def strace_command(output: Path, *, inject: str | None = None, attach: int | None = None) -> list[str]:
    """The arguments before the traced program, or with `attach` the whole command."""
    calls = ",".join(sorted(WRITES | SENDS | SYNCS))
    command = ["strace", "-f", "-y", "-xx", "-s", "48", "-e", f"trace={calls}", "-e", "signal=none"]
    if inject is not None:
        command += ["-e", f"inject={inject}"]
    if attach is not None:
        return [*command, "-o", str(output), "-p", str(attach)]
    # With seccomp only the traced calls stop the process; strace cannot do that to a process it attaches to.
    return [*command, "--seccomp-bpf", "-o", str(output), "--"]


def why_not() -> str | None:
    return None if shutil.which("strace") else "strace is missing"


def parse(lines: Iterable[str]) -> list[Call]:
    """Completed calls in the order in which they were entered."""
    calls: list[Call] = []
    unfinished: dict[tuple[int, str], tuple[int, str]] = {}
    for number, line in enumerate(lines):
        matched = _LINE.match(line.rstrip("\n"))
        if matched is None:
            continue
        thread, rest = int(matched["thread"] or 0), matched["rest"]
        if rest.endswith("<unfinished ...>"):
            head = rest.removesuffix("<unfinished ...>").rstrip()
            name = head.partition("(")[0]
            unfinished[thread, name] = (number, head)
            continue
        started = number
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            begun = unfinished.pop((thread, resumed["name"]), None)
            if begun is None:
                continue
            started, head = begun
            rest = head + resumed["rest"]
        call = _CALL.match(rest)
        if call is not None:
            calls.append(Call(call["name"], thread, started, number, call["arguments"], call["result"]))
    return sorted(calls, key=lambda call: call.started)


def find_answer(calls: Sequence[Call], correlation: int) -> Call | None:
    """The first call that sent an answer to this request, recognised by its correlation id."""
    wanted = struct.pack(">i", correlation)
    for call in calls:
        if call.name in SENDS and not call.path.startswith("/") and wanted in call.data[:16]:
            return call
    return None


def check_synced(calls: Sequence[Call], correlations: Sequence[int], log_part: str) -> list[str]:
    """One line for each answer that left before all its log writes were synced; empty when all is well.

    Args:
        correlations: of acknowledged Produce requests, sent one after the other by one client.
        log_part: what the paths of the topic's segment files contain.
    """
    problems: list[str] = []
    writes = [
        call
        for call in calls
        if call.name in WRITES and call.path.endswith(".log") and log_part in call.path and call.succeeded
    ]
    syncs = [call for call in calls if call.name in SYNCS and call.succeeded and not call.injected]
    before = -1
    for correlation in correlations:
        answer = find_answer(calls, correlation)
        if answer is None:
            problems.append(f"{correlation:#x}: no answer in the trace")
            continue
        last_write = {call.path: call for call in writes if before < call.started < answer.started}
        if not last_write:
            problems.append(f"{correlation:#x}: no write to a log before the answer")
        for path, write in last_write.items():
            if not any(_covers(sync, write, answer) for sync in syncs):
                problems.append(
                    f"{correlation:#x}: answered at line {answer.started}, "
                    f"no sync since the write at line {write.ended} to {path}"
                )
        before = answer.started
    return problems


def _covers(sync: Call, write: Call, answer: Call) -> bool:
    same = sync.name not in FILE_SYNCS or sync.path == write.path
    return same and write.ended < sync.started and sync.ended < answer.started
