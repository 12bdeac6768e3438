"""Sealed secrets open where they were sealed, with the key they were sealed by; and the files that keys are kept in."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.errors import StartupError, WrongSettings
from penstock.security.sealing import SealedAway, SealingKeys, derive_key
from penstock.security.secret import Secret
from penstock.security.secret_files import MAX_FILE_BYTES, load_key, read_secret_file

OLD, NEW = Secret(b"o" * 32), Secret(b"n" * 32)
PATH = "sec/keys/0123"


def test_what_is_sealed_opens_at_its_place() -> None:
    keys = SealingKeys(OLD)
    sealed = keys.seal(PATH, Secret("hunter2"), Random(1))
    assert "hunter2" not in sealed
    assert keys.open(PATH, sealed) == Secret("hunter2")
    with pytest.raises(SealedAway, match="another place"):
        keys.open("sec/keys/4567", sealed)
    assert sealed != keys.seal(PATH, Secret("hunter2"), Random(2))


def test_no_byte_of_it_may_be_another() -> None:
    keys = SealingKeys(OLD)
    sealed = keys.seal(PATH, Secret("x"), Random(1))
    for at, character in enumerate(sealed):
        for other in "A0:\0":
            changed = sealed[:at] + other + sealed[at + 1 :]
            if other != character:
                with pytest.raises(SealedAway):
                    keys.open(PATH, changed)
        with pytest.raises(SealedAway):
            keys.open(PATH, sealed[:at])


def test_a_key_is_replaced_by_another_one() -> None:
    sealed = SealingKeys(OLD).seal(PATH, Secret("x"), Random(1))
    both = SealingKeys(NEW, [OLD])
    assert both.open(PATH, sealed) == Secret("x") and not both.is_current(sealed)
    anew = both.seal(PATH, both.open(PATH, sealed), Random(2))
    assert both.is_current(anew) and SealingKeys(NEW).open(PATH, anew) == Secret("x")
    with pytest.raises(SealedAway, match="is not here"):
        SealingKeys(NEW).open(PATH, sealed)


def test_keys_are_derived_as_rfc_5869_says() -> None:
    made = derive_key(Secret(b"cluster secret"), "sealing").reveal()
    assert made == HKDF(SHA256(), 32, b"penstock security", b"sealing").derive(b"cluster secret")
    assert made != derive_key(Secret(b"cluster secret"), "other").reveal()


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "sealing.key"
    before = os.umask(0)
    try:
        made = load_key(str(path), Random(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(str(path), Random(2)) == made and len(made.reveal()) == 32
    assert os.listdir(tmp_path) == ["sealing.key"]


def test_of_two_that_make_it_both_have_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "sealing.key")
    link, others = os.link, []

    def late(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        others.append(load_key(path, Random(2)))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    monkeypatch.setattr(os, "getpid", iter([1, 2, 3]).__next__)
    assert load_key(path, Random(1)) == others[0]
    assert os.listdir(tmp_path) == ["sealing.key"]


def test_nobody_has_it_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's link where the file is made, which comes back as often as it is removed."""
    target = tmp_path / "theirs"
    target.write_bytes(b"")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    (tmp_path / "sealing.key.7.tmp").symlink_to(target)
    monkeypatch.setattr(os, "unlink", lambda path: None)
    with pytest.raises(StartupError, match="exists"):
        load_key(str(tmp_path / "sealing.key"), Random(1))
    assert target.read_bytes() == b""


@pytest.mark.parametrize("step", ["open", "write", "fsync", "link", "unlink"])
@pytest.mark.parametrize("after", [False, True])
def test_whenever_it_is_killed_the_next_start_has_a_whole_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    class Killed(BaseException):
        pass

    dead: list[str] = []

    def dying(name: str, real: Callable) -> Callable:
        def called(*arguments: Any) -> object:
            if dead:
                raise Killed  # not even a `finally` does anything after a kill
            if name == step and (step != "open" or arguments[1] & os.O_CREAT):
                dead.append(name)
                if after:
                    real(*arguments)
                raise Killed
            return real(*arguments)

        return called

    path = str(tmp_path / "sealing.key")
    for name in ("open", "write", "fsync", "link", "unlink"):
        monkeypatch.setattr(os, name, dying(name, getattr(os, name)))
    with pytest.raises(Killed):
        load_key(path, Random(1))
    monkeypatch.undo()
    assert dead == [step]
    seen = Path(path).read_bytes() if Path(path).exists() else None
    key = load_key(path, Random(2))
    assert seen is None or key.reveal().hex().encode() in seen
    assert load_key(path, Random(3)) == key


def test_no_bit_of_a_key_file_may_be_another(tmp_path: Path) -> None:
    path = tmp_path / "sealing.key"
    load_key(str(path), Random(1))
    said = path.read_bytes()
    for at in range(len(said)):
        for bit in range(8):
            path.write_bytes(said[:at] + bytes((said[at] ^ 1 << bit,)) + said[at + 1 :])
            with pytest.raises(StartupError, match="put a copy of it back"):
                load_key(str(path), Random(1))
    for size in range(len(said)):
        path.write_bytes(said[:size])
        with pytest.raises(StartupError):
            load_key(str(path), Random(1))


def test_a_file_with_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    for said in (b"hunter2", b"hunter2\n", b"hunter2\r\n"):
        path.write_bytes(said)
        path.chmod(0o600)
        assert read_secret_file(str(path)).reveal() == b"hunter2"
    path.chmod(0o400)
    assert read_secret_file(str(path)).reveal() == b"hunter2"
    for mode in (0o640, 0o604, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(WrongSettings, match="chmod 600"):
            read_secret_file(str(path))
    path.chmod(0o600)
    for said in (b"", b"\n", b"x" * (MAX_FILE_BYTES + 1)):
        path.write_bytes(said)
        with pytest.raises(WrongSettings):
            read_secret_file(str(path))
    for other in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(WrongSettings):
            read_secret_file(str(other))
