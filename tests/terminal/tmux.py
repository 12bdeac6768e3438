"""A terminal of 120 by 40 characters with bash in it, inside a tmux server of its own.

The prompt says how many commands were entered and how the last one ended, `[3:130]> `, so that a test can wait for
the next prompt and read the exit code from it.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 60
COLUMNS, LINES = 120, 40
_POLL_S = 0.03
_PROMPT = re.compile(r"^(?:\x1b\[[0-9;]*m)*\[(\d+):(\d+)\]> ?", re.MULTILINE)


class Finished(NamedTuple):
    code: int
    text: str


class Terminal:
    """One window of a private tmux server; `close` ends the server and all in it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._sockets = tempfile.mkdtemp(prefix="tmux-")  # a socket's path must be short
        self._name = f"penstock-{uuid.uuid4().hex[:12]}"
        self._env = {**env, "TMUX_TMPDIR": self._sockets, "HISTFILE": "/dev/null"}
        self._entered = 1
        start = Path(self._sockets, "bashrc")
        start.write_text(r"PS1='[\#:$?]> '")
        shell = shlex.join(["bash", "--noprofile", "--rcfile", str(start), "-i"])
        try:
            self._tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), shell)
            self.wait(lambda: self._prompts() == [1], "the first prompt")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, Tab, C-c."""
        self._tmux("send-keys", *keys)

    def enter(self, line: str) -> None:
        self.type(line)
        self.press("Enter")

    def run(self, line: str) -> Finished:
        """Enter a command and wait until it has ended."""
        self.enter(line)
        return self.finish()

    def finish(self) -> Finished:
        """Wait for the next prompt; returns how the command before it ended and all it showed."""
        number = self._entered + 1
        self.wait(lambda: number in self._prompts(), f"prompt {number}")
        self._entered = number
        return Finished(self._code_of(number), self._shown_before(number, self.screen()))

    def colours(self) -> str:
        """What the last finished command showed, with the escape sequences of colours and styles."""
        return self._shown_before(self._entered, self.screen(escapes=True))

    def screen(self, *, escapes: bool = False) -> str:
        """Everything on the screen and scrolled off it."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-", *(["-e"] if escapes else []))

    def last_line(self) -> str:
        lines = self.screen().rstrip("\n ").splitlines()
        return lines[-1] if lines else ""

    def wait_text(self, text: str) -> None:
        """Wait until the command that runs has shown this."""
        self.wait(lambda: text in self._shown_since(self._entered), repr(text))

    def wait(self, condition: Callable[..., bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {DEADLINE_S} s; the screen:\n{self.screen()}")
            time.sleep(_POLL_S)

    def _prompts(self) -> list[int]:
        return [int(found[1]) for found in _PROMPT.finditer(self.screen())]

    def _code_of(self, number: int) -> int:
        return next(int(found[2]) for found in _PROMPT.finditer(self.screen()) if int(found[1]) == number)

    def _shown_before(self, number: int, screen: str) -> str:
        """From the line of the command to the prompt after it, without both."""
        starts = {int(found[1]): found for found in _PROMPT.finditer(screen)}
        between = screen[starts[number - 1].end() : starts[number].start()]
        return between.partition("\n")[2]

    def _shown_since(self, number: int) -> str:
        screen = self.screen()
        start = next(found.end() for found in _PROMPT.finditer(screen) if int(found[1]) == number)
        return screen[start:].partition("\n")[2]

    def _tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", "-u", *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"tmux {shlex.join(words)}: {done.stderr}")
        return done.stdout


def shell_environment(home: Path, programs: Path, **more: str) -> dict[str, str]:
    """An environment with nothing of whoever runs the tests but the way to programs."""
    return {
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SHELL": "/bin/bash",
        **more,
    }
