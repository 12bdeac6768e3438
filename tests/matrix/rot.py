"""What can be done to the files of a broker that is down: bits flip, files go, old copies come back.

It is started again at once, and has to find out; one that runs, when somebody reads it. What is damaged
is never what the cluster goes by afterwards.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.chaos.load import read_everything, wait_until

from .faults import Fault, Scene, Target, pass_time
from .machines import Machine

Ending = Literal["kill", "stop"]
Spoil = Callable[[Path, random.Random], str]
"""Does it to a partition's directory, and says what."""
_ENOUGH_SEGMENTS = 3


def flip(pattern: str, share: float = 0.5) -> Spoil:
    """One bit of a file that is named so."""

    def spoil(directory: Path, coin: random.Random) -> str:
        path = coin.choice(_named(directory, pattern))
        position = _flip(path, coin, share)
        return f"a bit of {path.name} flipped at {position:,} of {path.stat().st_size:,}"

    return spoil


def flip_sealed(directory: Path, coin: random.Random) -> str:
    path = coin.choice(_named(directory, "*.log")[:-1])
    return f"a bit of the sealed {path.name} flipped at {_flip(path, coin, coin.random()):,}"


def flip_active(directory: Path, coin: random.Random) -> str:
    """Before its middle, where everything is committed; the one before it, if it is empty yet."""
    path = [path for path in _named(directory, "*.log") if path.stat().st_size][-1]
    return f"a bit of the active {path.name} flipped at {_flip(path, coin, coin.uniform(0, 0.5)):,}"


def flip_many(directory: Path, coin: random.Random) -> str:
    names = [path.name for path in _named(directory, "*") if path.is_file() and path.stat().st_size]
    for name in names:
        _flip(directory / name, coin, coin.random())
    return f"a bit of each of {len(names)} files flipped"


def truncate_sealed(directory: Path, coin: random.Random) -> str:
    path = coin.choice(_named(directory, "*.log")[:-1])
    return _truncate(path, coin)


def truncate_active(directory: Path, coin: random.Random) -> str:
    return _truncate([path for path in _named(directory, "*.log") if path.stat().st_size][-1], coin)


def delete(pattern: str) -> Spoil:
    def spoil(directory: Path, coin: random.Random) -> str:
        path = coin.choice(_named(directory, pattern))
        path.unlink()
        return f"{path.name} deleted"

    return spoil


def delete_sealed(directory: Path, coin: random.Random) -> str:
    path = coin.choice(_named(directory, "*.log")[:-1])
    path.unlink()
    return f"the sealed {path.name} deleted"


def delete_directory(directory: Path, _: random.Random) -> str:
    shutil.rmtree(directory)
    return "the partition's directory deleted"


def delete_everything(directory: Path, _: random.Random) -> str:
    """The disk was replaced by an empty one."""
    data = directory.parents[2]
    shutil.rmtree(data)
    return "all data deleted"


def _watermarks(directory: Path) -> Path:
    return directory.parents[2] / "high-watermarks"


def delete_watermarks(directory: Path, _: random.Random) -> str:
    _watermarks(directory).unlink()
    return "the file of high watermarks deleted"


def spoiled(target: Target, spoil: Spoil, ending: Ending = "kill", *, all_down: bool = False) -> Fault:
    """One broker ends, its files change, it starts again.

    Args:
        all_down: all brokers end and start together, so that the damaged one is asked to lead.
    """

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        directory = victim.data / "logs" / scene.topic / "0"
        enough = f"{_ENOUGH_SEGMENTS} segments of partition 0 on broker {victim.id}"
        wait_until(lambda: len(list(directory.glob("*.log"))) >= _ENOUGH_SEGMENTS, 60, enough)
        wait_until(_watermarks(directory).exists, 60, "high watermarks were saved")
        ended = list(scene.arena.machines.values()) if all_down else [victim]
        _end(ended, ending)
        scene.note(f"broker {victim.id} ({target}) {ending}: {spoil(directory, scene.coin)}")
        if all_down:
            scene.notes[-1] += "; all brokers were down"
            scene.arena.cluster.start()
        else:
            victim.start()
        yield

    return fault


def ledger_spoiled(*, all_down: bool = False) -> Fault:
    """The leader of a queue ends, and a bit of its ledger's log flips where everything is committed.

    Args:
        all_down: all brokers are stopped and start together, so that the damaged one is asked to lead. Otherwise it is
            killed.
    """

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose("leader")
        directory = victim.data / "logs" / f"{scene.topic}~queue" / "0"
        ending: Ending = "stop" if all_down else "kill"
        _end(list(scene.arena.machines.values()) if all_down else [victim], ending)
        said = flip_active(directory, scene.coin)
        scene.note(f"broker {victim.id} (leader) {ending}: of the ledger {said}")
        if all_down:
            scene.notes[-1] += "; all brokers were down"
            scene.arena.cluster.start()
        else:
            victim.start()
        yield

    return fault


@contextmanager
def spoiled_while_it_runs(scene: Scene) -> Iterator[None]:
    """A sealed segment of a running leader: whoever reads it from the start then is given every record all the same."""
    leader = scene.choose("leader")
    directory = leader.data / "logs" / scene.topic / "0"
    enough = f"{_ENOUGH_SEGMENTS} sealed segments of partition 0 on broker {leader.id}"
    wait_until(lambda: len(list(directory.glob("*.index"))) >= _ENOUGH_SEGMENTS, 60, enough)
    sealed = [path.with_suffix(".log") for path in _named(directory, "*.index")]
    path = scene.coin.choice(sealed)
    said = f"a bit of the sealed {path.name} flipped at {_flip(path, scene.coin, scene.coin.random()):,}"
    _drop_from_memory(path)
    (log,) = read_everything(scene.arena.cluster.bootstrap, scene.topic, 1).values()
    assert [record.offset for record in log.records] == list(range(log.end_offset)), "a reader was given other offsets"
    scene.note(f"broker {leader.id} (leader), running: {said}; {log.end_offset:,} records read from the start then")
    yield


def _drop_from_memory(path: Path) -> None:
    """What rots is the disk: the kernel has the bytes as they were until it needs their memory."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def old_files(target: Target, copied_after: Ending, restored_after: Ending) -> Fault:
    """A copy of a broker's files is put back when the cluster is further on."""

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        assert victim.disk is not None
        copy = scene.arena.directory / "old-files"
        _end([victim], copied_after)
        shutil.copytree(victim.data, copy, symlinks=True)
        victim.start()
        scene.arena.cluster.wait_whole(scene.topic)
        pass_time(3.0)
        _end([victim], restored_after)
        shutil.rmtree(victim.data)
        shutil.copytree(copy, victim.data, symlinks=True)
        scene.note(f"broker {victim.id} ({target}): files of a {copied_after} put back after a later {restored_after}")
        victim.start()
        yield

    return fault


def _end(machines: list[Machine], ending: Ending) -> None:
    for machine in machines:
        if ending == "kill":
            machine.kill()
        else:
            machine.terminate()
    for machine in machines:
        if ending == "stop":
            code = machine.wait_end()
            assert code == 0, f"broker {machine.id} ended with {code} when it was asked to stop"


def _named(directory: Path, pattern: str) -> list[Path]:
    found = sorted(directory.glob(pattern))
    assert found, f"there is no {pattern} in {directory}"
    return found


def _flip(path: Path, coin: random.Random, share: float) -> int:
    content = bytearray(path.read_bytes())
    position = min(int(len(content) * share), len(content) - 1)
    content[position] ^= 1 << coin.randrange(8)
    path.write_bytes(content)
    return position


def _truncate(path: Path, coin: random.Random) -> str:
    size = path.stat().st_size
    left = int(size * coin.uniform(0.1, 0.9))
    with path.open("r+b") as file:
        file.truncate(left)
    return f"{path.name} cut from {size:,} to {left:,} bytes"
