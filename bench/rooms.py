"""`python -m bench.rooms`: what mypyc would give to rooms of the broker that are not compiled, one by one.

For each room `src/penstock` is copied to a temporary directory, the room is compiled there and nothing else besides,
and a load that drives the room alone (`room_loads.py`) runs over the sources as they are and over the copy, in turn,
each time in a new process. The table has the least CPU time of an operation that any round saw; the parts of `records`
that are always compiled are so in both copies, if they are in the clone. `python -m bench.rooms ROOM` measures some.

A gain here is that of calls from Python into one compiled room; rooms compiled together call each other for less, which
the row of several rooms of `storage.log` tells. `bench.ab` says what a gain is worth to a whole broker.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import room_loads
from bench.progress import say
from penstock import compiled

ROOT = Path(__file__).parent.parent
FLAGS = (
    "--config-file=",
    "--strict",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--no-warn-unused-ignores",
    "--explicit-package-bases",
)
"""As hatch_build.py has them."""


class RoomError(Exception):
    """Why there are no figures, in one line."""


class Line(NamedTuple):
    """Of the table; times in CPU microseconds."""

    room: str
    operation: str
    pure_us: float
    compiled_us: float

    def __str__(self) -> str:
        ratio = self.compiled_us / self.pure_us
        return f"| {_shown(self.room)} | {self.operation} | {self.pure_us:.2f} | {self.compiled_us:.2f} | {ratio:.2f} |"


class Copies:
    """Two copies of the package: one stays as it is, in the other one room at a time is compiled."""

    def __init__(self, directory: Path) -> None:
        self._types = directory / "types"
        self.pure, self.compiled = directory / "pure", directory / "compiled"
        for copy in (self.pure, self.compiled):
            shutil.copytree(ROOT / "src" / "penstock", copy / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
            for library in (ROOT / "src").glob("*.so"):
                shutil.copy2(library, copy)
        self._kept = set(self.compiled.rglob("*.so"))

    def compile(self, room: str) -> None:
        """Compile a room, and no other than that. Raises RoomError."""
        for library in set(self.compiled.rglob("*.so")) - self._kept:
            library.unlink()
        shutil.rmtree(self.compiled / "build", ignore_errors=True)
        sources = [f"penstock/{name.replace('.', '/')}.py" for name in room.split()]
        ran = subprocess.run(
            [sys.executable, "-m", "mypyc", *FLAGS, f"--cache-dir={self._types}", *sources],
            cwd=self.compiled,
            env=os.environ | {"MYPYPATH": str(self.compiled), "MYPYC_OPT_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RoomError(f"does not compile: {first_error(ran.stdout + ran.stderr)}")

    def run(self, room: str, operations: int | None, *, is_compiled: bool) -> list[float]:
        """Microseconds of each load. Raises RoomError."""
        copy = self.compiled if is_compiled else self.pure
        command = [sys.executable, "-m", "bench.room_loads", room]
        command += ["--compiled"] if is_compiled else []
        command += [f"--operations={operations}"] if operations else []
        environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RoomError(f"does not run {copy.name}: {ran.stderr.strip().splitlines()[-1]}")
        figures: list[float] = json.loads(ran.stdout)
        return figures


def first_error(output: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = output.strip().splitlines() or ["no reason given"]
    return next((line.strip() for line in lines if "error:" in line), lines[-1])


def measure(copies: Copies, room: str, rounds: int, operations: int | None = None) -> list[Line]:
    """Raises RoomError."""
    copies.compile(room)
    best: dict[bool, list[float]] = {}
    for _ in range(rounds):
        for is_compiled in (False, True):
            figures = copies.run(room, operations, is_compiled=is_compiled)
            best[is_compiled] = [min(pair) for pair in zip(figures, best.get(is_compiled, figures), strict=True)]
    return [
        Line(room, load.operation, pure_us, compiled_us)
        for load, pure_us, compiled_us in zip(room_loads.LOADS[room], best[False], best[True], strict=True)
    ]


def _shown(room: str) -> str:
    """`net.frames net.buffer` as `net.frames`, `buffer`."""
    first, *others = room.split()
    return ", ".join(f"`{name}`" for name in (first, *(other.rpartition(".")[2] for other in others)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"one of: {', '.join(room_loads.LOADS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--operations", type=int, default=None, help="of each load, instead of its own number")
    chosen = parser.parse_args(arguments)
    unknown = [room for room in chosen.rooms if room not in room_loads.LOADS]
    if unknown:
        parser.error(f"no such room: {', '.join(unknown)}")
    say(f"records are {compiled.form()} in both copies; load of the machine: {os.getloadavg()[0]:.1f}")
    print("| room | one operation | µs pure | µs compiled | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        copies = Copies(Path(directory))
        for room in chosen.rooms or room_loads.LOADS:
            try:
                for line in measure(copies, room, chosen.rounds, chosen.operations):
                    print(line, flush=True)
            except RoomError as error:
                print(f"| {_shown(room)} | {error} | | | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
