"""Members.java as a process: the members of one group, what they were told so far, and when records came to them."""

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from bench import jvm
from bench.native import NativeError
from bench.timeline import Change, ownership, whole_from

_END_S = 60.0
_LOOK_S = 0.02


class Members:
    """Consumers of one group in one JVM."""

    def __init__(self, bootstrap: str, topic: str, count: int, config: dict[str, str], complaints: IO[str]) -> None:
        self.count = count
        self.changes: list[Change] = []
        self.arrivals: dict[int, list[float]] = {}
        """When records of each partition came, once the members are closed."""
        self._complaints = complaints
        self._logged: list[str] = []
        settings = [f"{name}={value}" for name, value in config.items()]
        self._process = subprocess.Popen(
            jvm.own_command("Members", bootstrap, topic, count, *settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def join(self) -> None:
        """One more member."""
        assert self._process.stdin is not None
        self.count += 1
        self._process.stdin.write("join\n")
        self._process.stdin.flush()

    def joined_s(self, member: int) -> float:
        """When a member first asked."""
        return next(each.at_s for each in self.changes if each.member == member and each.kind == "joins")

    def wait_whole(self, partitions: int, patience_s: float, quiet_s: float) -> float:
        """When every partition got its one owner and every member a partition, which then was so for `quiet_s`.

        Raises:
            NativeError: that was not so in time, or a partition had two owners.
        """

        seen = -1

        def settled() -> bool:
            nonlocal seen
            if len(self.changes) == seen:
                return False
            seen = len(self.changes)
            return whole_from(self.changes[:seen], partitions, self.count) is not None

        self._wait(settled, time.monotonic() + patience_s, f"{partitions} partitions did not get one owner each")
        time.sleep(quiet_s)
        changes = list(self.changes)
        if twice := ownership(changes).twice:
            raise NativeError(f"partitions had two owners: {sorted(twice)[:10]}")
        found_s = whole_from(changes, partitions, self.count)
        if found_s is None:
            raise NativeError(f"{partitions} partitions had one owner each, but not for {quiet_s:g} s")
        return found_s

    def close(self) -> None:
        """Let all of them leave."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise NativeError(f"the members of a group did not leave within {_END_S:.0f} s") from None
        self._reader.join()
        if self._process.returncode != 0:
            raise NativeError(f"the members of a group failed: {self._said()}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _wait(self, condition: Callable[[], bool], deadline_s: float, failure: str) -> None:
        while not condition():
            if self._process.poll() is not None:
                raise NativeError(f"the members of a group ended: {self._said()}")
            if time.monotonic() > deadline_s:
                raise NativeError(f"{failure}; {self._said()}")
            time.sleep(_LOOK_S)

    def _said(self) -> str:
        self._complaints.seek(0)
        return ("".join(self._logged) + self._complaints.read())[-2000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                self._logged.append(line)
                continue
            found = json.loads(line)
            if found["kind"] == "arrivals":
                self.arrivals.setdefault(found["partition"], []).extend(each / 1e9 for each in found["times"])
            else:
                partitions = frozenset(found["partitions"])
                self.changes.append(Change(found["at"] / 1e9, found["member"], found["kind"], partitions))


@contextmanager
def open_members(bootstrap: str, topic: str, count: int, config: dict[str, str]) -> Iterator[Members]:
    """Start so many members and do something to them; they do not outlive the block."""
    with tempfile.TemporaryFile("w+") as complaints:
        started = Members(bootstrap, topic, count, config, complaints)
        try:
            yield started
        finally:
            started.kill()
