"""Shells in terminals of a tmux server of their own, and what they show over time."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from scripts.picture.screen import parse_rows

_SAMPLE_S: Final = 0.08
_KEYS: Final = 4  # typed between two looks: a quick typist, and few steps to draw
_PAUSE_S: Final = 0.5
_PATIENCE_S: Final = 60.0
_BETWEEN: Final = "\x1f"
# A job's end is told when it ends (`set -b`), and no history file is touched.
_SHELL_START: Final = r"PS1='\[\e[32m\]$\[\e[0m\] '; set -b; unset HISTFILE" + "\n"


class Panel(NamedTuple):
    title: str
    columns: int
    lines: int


class Frame(NamedTuple):
    """What all terminals show from a moment on, with escape sequences for colours."""

    at_s: float
    screens: tuple[str, ...]


class RecordingError(Exception):
    """Something expected was not seen; the text says what, and what was."""


class Recorder:
    """Types into the terminals and keeps what they show. Whatever waits also records. Use as a context manager."""

    def __init__(self, panels: Sequence[Panel], directory: Path, env: Mapping[str, str]) -> None:
        self.frames: list[Frame] = []
        self._sockets = tempfile.mkdtemp(prefix="tmux-")  # a socket's path must be short
        self._names = [f"terminal-{number}" for number in range(len(panels))]
        self._env = {**env, "TMUX_TMPDIR": self._sockets}
        start = Path(self._sockets, "bashrc")
        start.write_text(_SHELL_START)
        shell = shlex.join(["bash", "--noprofile", "--rcfile", str(start), "-i"])
        for name, panel in zip(self._names, panels, strict=True):
            size = ["-x", str(panel.columns), "-y", str(panel.lines)]
            self._tmux("new-session", "-d", "-s", name, *size, "-c", str(directory), shell)
        self._began_s = time.monotonic()
        for terminal in range(len(panels)):
            self.wait_prompt(terminal)
        self.frames.clear()
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server")
        shutil.rmtree(self._sockets, ignore_errors=True)

    def enter(self, terminal: int, line: str) -> None:
        """Type a line as a person would, then Enter."""
        for at in range(0, len(line), _KEYS):
            keys = re.sub(";$", r"\;", line[at : at + _KEYS])  # at the end it would be tmux's own
            self._tmux("send-keys", "-t", self._names[terminal], "-l", "--", keys)
            self._sample()
        self.rest(_PAUSE_S)
        self.press(terminal, "Enter")

    def press(self, terminal: int, key: str) -> None:
        """A key by tmux's name for it."""
        self._tmux("send-keys", "-t", self._names[terminal], key)

    def rest(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._sample()

    def wait_for(self, terminal: int, text: str, times: int = 1) -> None:
        """Until the terminal shows this so often."""
        self.wait(lambda screens: screens[terminal].count(text) == times, repr(text))

    def wait_prompt(self, terminal: int) -> None:
        """Until the shell takes the next line."""
        self.wait(lambda screens: _last_row(screens[terminal]) == "$", "prompt")

    def wait(self, condition: Callable[[tuple[str, ...]], bool], what: str) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not condition(self._sample()):
            if time.monotonic() > until_s:
                shown = "\n".join(self.frames[-1].screens)
                raise RecordingError(f"no {what} within {_PATIENCE_S:g} s; the terminals:\n{shown}")

    def _sample(self) -> tuple[str, ...]:
        """Look once, and keep what is new; takes as long as a look is from the next."""
        began_s = time.monotonic()
        words: list[str] = []
        for name in self._names:
            words += ["capture-pane", "-p", "-e", "-t", name, ";", "display-message", "-p", _BETWEEN, ";"]
        screens = tuple(self._tmux(*words[:-1]).split(f"{_BETWEEN}\n")[: len(self._names)])
        if not self.frames or self.frames[-1].screens != screens:
            self.frames.append(Frame(began_s - self._began_s, screens))
        time.sleep(max(0.0, _SAMPLE_S - (time.monotonic() - began_s)))
        return screens

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = ["tmux", "-f", "/dev/null", "-u", *words]
        return subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)  # noqa: S603 - ours

    def _tmux(self, *words: str) -> str:
        done = self._run(*words)
        if done.returncode != 0:
            raise RecordingError(f"tmux {shlex.join(words)}: {done.stderr.strip()}")
        return done.stdout


def _last_row(screen: str) -> str:
    rows = [row for row in parse_rows(screen) if row]
    return "".join(cell.character for cell in rows[-1]) if rows else ""


def shell_environment(home: Path, programs: Path) -> dict[str, str]:
    """Nothing of whoever records, but the way to programs."""
    return {
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SHELL": "/bin/bash",
    }
