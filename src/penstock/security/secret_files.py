"""Files with a secret in them, which nobody else may read (`private_files`): the first admin's, and a sealing key.

    penstock-key 1 {64 hexadecimal digits} {CRC-32 of what stands before it, 8 digits}

These functions block, and are for the start. They go to the operating system by themselves: whom a file belongs to and
who may read it is all that they are about, and the disk port knows nothing of that.
"""

import os
import re
import stat
import zlib
from contextlib import suppress
from typing import Final

from penstock.errors import StartupError, WrongSettings
from penstock.ports.randomness import Randomness
from penstock.private_files import is_private, tell_way_out
from penstock.security.sealing import KEY_BYTES
from penstock.security.secret import Secret

MAX_FILE_BYTES: Final = 4096
_KEY_FILE: Final = re.compile(rb"(penstock-key 1 ([0-9a-f]{64})) ([0-9a-f]{8})\n")


def read_secret_file(path: str) -> Secret:
    """What is in the file, without the end of its line. Raises `WrongSettings`."""
    try:
        said = _read(path)
    except OSError as error:
        raise WrongSettings(f"{path}: cannot be read: {error.strerror}") from None
    said = said.rstrip(b"\r\n")
    if not said:
        raise WrongSettings(f"{path}: is empty; it should hold a secret in one line")
    return Secret(said)


def load_key(path: str, randomness: Randomness) -> Secret:
    """The key in a file, which is made if there is none. Raises `StartupError`."""
    try:
        try:
            return _parse(path, _read(path))
        except FileNotFoundError:
            _make(path, randomness)
        return _parse(path, _read(path))
    except OSError as error:
        raise StartupError(f"sealing key {path}: {error.strerror}") from None


def read_key(path: str) -> Secret:
    """The key in a file that has to be there. Raises `StartupError`."""
    try:
        return _parse(path, _read(path))
    except OSError as error:
        raise WrongSettings(f"sealing key {path}: {error.strerror}") from None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise WrongSettings(f"{path}: is not a file")
        if not is_private(found):
            raise WrongSettings(
                f"{path}: others than its owner may read or write it (mode {stat.S_IMODE(found.st_mode):04o}); "
                f"run: {tell_way_out(path, found)}"
            )
        if found.st_size > MAX_FILE_BYTES:
            raise WrongSettings(f"{path}: {found.st_size} bytes are too many for a secret")
        return os.read(descriptor, MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _parse(path: str, said: bytes) -> Secret:
    found = _KEY_FILE.fullmatch(said)
    if found is None:
        raise StartupError(
            f"sealing key {path}: is not of the form this release reads, or damaged; put a copy of it back. Without "
            "it, secrets that it has sealed are lost"
        )
    if zlib.crc32(found[1]) != int(found[3], 16):
        raise StartupError(f"sealing key {path}: its checksum does not match; put a copy of it back")
    return Secret(bytes.fromhex(found[2].decode()))


def _make(path: str, randomness: Randomness) -> None:
    """Of two that make it at the same time one is first, and the other one finds it there; none is seen half made."""
    body = b"penstock-key 1 " + randomness.getrandbits(KEY_BYTES * 8).to_bytes(KEY_BYTES, "big").hex().encode()
    temporary = f"{path}.{os.getpid()}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(temporary)  # of a process with our id that was killed here
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, body + b" %08x\n" % zlib.crc32(body))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
