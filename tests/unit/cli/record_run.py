"""`penstock` run inside this process with bytes in and bytes out, and a standard output that may be a terminal."""

import io
import sys
from typing import NamedTuple
from unittest import mock

from penstock.cli.main import main


class Result(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[bytes]:
        return self.out.splitlines()


class _Stream(io.TextIOWrapper):
    def __init__(self, content: bytes = b"", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def written(self) -> bytes:
        self.flush()
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue()


def call(server: str, *words: str, stdin: bytes = b"", terminal: bool = False) -> Result:
    """`words` begin with the command; the server is added."""
    given, out, err = _Stream(stdin), _Stream(terminal=terminal), _Stream()
    with (
        mock.patch.object(sys, "stdin", given),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        code = main([*words, "-s", server])
    return Result(code, out.written, err.written.decode())
