"""Machines as network namespaces: one for the clients, with a bridge, and one for each broker, joined by a veth pair.

Nothing is made in the namespace this process was started in, so addresses and ports are free to be the same in every
run. Names carry the process id: what a dead run left is found by it and swept away.
"""

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "pnst"
CLIENT = 0
"""The number of the clients' namespace; machines count from 1."""
_NETWORK = "10.77.0"
_CLONE_NEWNET = 0x40000000
_NAMES = Path("/run/netns")
_OWNED = re.compile(rf"(?:{PREFIX}|penstock-matrix)-(\d+)-")
_libc = ctypes.CDLL(None, use_errno=True)


class ArenaError(Exception):
    """The arena cannot be built or used; the text names the way out."""


def why_not() -> str | None:
    """The reason why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo, or in a container started with --privileged"
    for program in ("ip", "nft", "nsenter"):
        if not _which(program):
            return f"there is no {program}: install iproute2, nftables and util-linux"
    return None


def address(number: int) -> str:
    return f"{_NETWORK}.{number if number else 100}"


class Namespaces:
    """One for each machine, and the clients' own. Use as a context manager.

    Args:
        machines: how many.
        tag: what tells this arena from others of the same process.
    """

    def __init__(self, machines: int, tag: str) -> None:
        self.machines = machines
        self._tag = tag

    def name(self, number: int) -> str:
        return f"{PREFIX}-{os.getpid()}-{self._tag}-{number}"

    def __enter__(self) -> "Namespaces":
        reason = why_not()
        if reason is not None:
            raise ArenaError(reason)
        sweep()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        client = self.name(CLIENT)
        for number in range(self.machines + 1):
            _ip("netns", "add", self.name(number))
            _ip("-n", self.name(number), "link", "set", "lo", "up")
        _ip("-n", client, "link", "add", "bridge", "type", "bridge")
        _ip("-n", client, "addr", "add", f"{address(CLIENT)}/24", "dev", "bridge")
        _ip("-n", client, "link", "set", "bridge", "up")
        for number in range(1, self.machines + 1):
            own = self.name(number)
            _ip("-n", own, "link", "add", "uplink", "type", "veth", "peer", "name", f"port{number}", "netns", client)
            _ip("-n", client, "link", "set", f"port{number}", "master", "bridge", "up")
            _ip("-n", own, "addr", "add", f"{address(number)}/24", "dev", "uplink")
            _ip("-n", own, "link", "set", "uplink", "up")

    def __exit__(self, *_: object) -> None:
        for number in range(self.machines + 1):
            _delete(self.name(number))

    def within(self, number: int) -> list[str]:
        """What to put before a command for it to run there; its process id stays the command's own."""
        return ["nsenter", f"--net={_NAMES / self.name(number)}", "--"]

    @contextmanager
    def inside(self, number: int = CLIENT) -> Iterator[None]:
        """This thread, and the threads and processes it starts meanwhile, are there."""
        with open("/proc/thread-self/ns/net", "rb") as before:
            _enter(_NAMES / self.name(number))
            try:
                yield
            finally:
                _set(before.fileno())


def sweep() -> None:
    """End and remove what runs whose process is gone have left."""
    if _NAMES.is_dir():
        for entry in _NAMES.iterdir():
            if entry.name.startswith(PREFIX) and _is_orphan(entry.name):
                _delete(entry.name)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        point = line.split()[1]
        if _OWNED.search(point) and _is_orphan(point):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def _is_orphan(name: str) -> bool:
    found = _OWNED.search(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()


def _delete(name: str) -> None:
    listed = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
    for pid in listed.stdout.split():
        if int(pid) != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _enter(path: Path) -> None:
    with path.open("rb") as namespace:
        _set(namespace.fileno())


def _set(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise ArenaError(f"setns: {os.strerror(ctypes.get_errno())}")


def _which(program: str) -> bool:
    places = [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]
    return any((Path(place) / program).exists() for place in places)


def _ip(*arguments: str) -> None:
    run(["ip", *arguments])


def run(command: Sequence[str], text: str | None = None) -> str:
    """What it prints. Raises with its complaint when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, input=text, env={**os.environ, "PATH": _path()}
    )
    if done.returncode != 0:
        raise ArenaError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
