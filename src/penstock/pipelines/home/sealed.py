"""JSON files with a version and a checksum, replaced whole: a crash leaves the old one or the new one.

The CRC-32C covers version and body in their shortest form with sorted keys, so a file that a person indented stays
valid and one whose values changed does not.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from crc32c import crc32c

from penstock.pipelines.errors import PipelineError

VERSION: Final = 1


def save(path: Path, body: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace the file. Without `durable` a power cut may undo it, or leave it empty."""
    sealed = {"version": VERSION, "crc32c": _checksum(VERSION, body), "body": body}
    # A name of its own: a writer that was given up for dead must not write into the file of its successor.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(orjson.dumps(sealed))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def load(path: Path, way_out: str) -> dict[str, Any] | None:
    """The body, or None where there is no such file.

    Args:
        way_out: what a person may do about a damaged file, for the error.

    Raises:
        PipelineError: it is damaged, or of a later release.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        sealed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _damaged(path, f"no JSON ({error})", way_out) from None
    if not isinstance(sealed, dict) or not isinstance(sealed.get("version"), int):
        raise _damaged(path, "there is no version in it", way_out)
    version, body = sealed["version"], sealed.get("body")
    if version > VERSION:
        raise PipelineError(
            f"{path} has format version {version}; this release reads up to {VERSION}. Use the release that wrote it, "
            "or a later one"
        )
    if not isinstance(body, dict) or sealed.get("crc32c") != _checksum(version, body):
        raise _damaged(path, "its checksum does not match", way_out)
    return body


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _checksum(version: int, body: Mapping[str, Any]) -> int:
    value: int = crc32c(orjson.dumps([version, body], option=orjson.OPT_SORT_KEYS))
    return value


def _damaged(path: Path, what: str, way_out: str) -> PipelineError:
    return PipelineError(f"{path} is damaged: {what}. {way_out}")
