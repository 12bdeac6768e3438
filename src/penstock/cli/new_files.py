"""Files with secrets: readable by their owner alone, whole or not there, and in no other file's place unasked."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from penstock.cli.failure import USAGE, CommandError


def write_new(files: Mapping[Path, bytes], *, replace: bool) -> None:
    """Write all of them, in their order; unless they replace others, all or none.

    Args:
        replace: files of these names go. Otherwise one that is there already is an error, also if it comes only now.
    """
    written: list[tuple[str, Path]] = []
    try:
        for path, body in files.items():
            written.append((_write_beside(path, body), path))
        _put_in_place(written, replace=replace)
    finally:
        for fresh, _ in written:
            with suppress(FileNotFoundError):
                os.unlink(fresh)
    for directory in {path.parent for path in files}:
        _sync(directory)


def _put_in_place(written: list[tuple[str, Path]], *, replace: bool) -> None:
    placed: list[Path] = []
    for fresh, path in written:
        if replace:
            os.replace(fresh, path)
            continue
        try:
            os.link(fresh, path)
        except OSError as error:
            for each in placed:
                each.unlink()
            if not isinstance(error, FileExistsError):
                raise
            told = f"{path} is there already; choose another name, or replace it with --force"
            raise CommandError(told, code=USAGE) from None
        placed.append(path)


def _write_beside(path: Path, body: bytes) -> str:
    handle, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable by its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(fresh)
        raise
    return fresh


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
