"""Who else may read a file with a secret: one rule, whatever the secret is for."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import WrongSettings
from penstock.net.certificates import check_private
from penstock.security.secret_files import read_secret_file


def check_key(path: str) -> None:
    check_private(path, "private key")


@pytest.mark.parametrize("read", [read_secret_file, check_key])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "is_taken"),
    [
        (0, 4242, 0o440, True),  # as Kubernetes mounts a Secret with an fsGroup
        (0, 10001, 0o640, True),
        (0, 0, 0o440, True),
        (10001, 4242, 0o400, True),
        (0, 4343, 0o440, False),
        (0, 4242, 0o444, False),
        (0, 4242, 0o460, False),
        (0, 4242, 0o450, False),
        (10001, 10001, 0o640, False),
        (4242, 4242, 0o640, False),
    ],
)
def test_what_root_gave_may_be_our_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[str], object],
    owner: int,
    group: int,
    mode: int,
    is_taken: bool,
) -> None:
    """As user 10001, in group 4242 as well."""
    path = tmp_path / "secret"
    path.write_bytes(b"hunter2")
    path.chmod(mode)

    def owned(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def of(where: object, **options: object) -> os.stat_result:
            found = list(look(where, **options)[:10])
            found[stat.ST_UID], found[stat.ST_GID] = owner, group
            return os.stat_result(found)

        return of

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", owned(os.fstat))
        patched.setattr(os, "stat", owned(os.stat))
        patched.setattr(os, "geteuid", lambda: 10001)
        patched.setattr(os, "getegid", lambda: 10001)
        patched.setattr(os, "getgroups", lambda: [4242])
        if is_taken:
            read(str(path))
            return
        with pytest.raises(WrongSettings, match="chmod 600"):
            read(str(path))
