"""Files that hold secrets or keys: who else may read one.

A file that root gave us may be our group's to read, too: Kubernetes mounts secrets so, and /etc on a machine has them.
"""

import os
import stat
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def is_private(found: os.stat_result) -> bool:
    """Whether nobody reads it but its owner; or root owns it, we are not root, and it is our group's, or root's."""
    others = found.st_mode & _OTHERS
    if not others:
        return True
    if others != stat.S_IRGRP or not _is_given(found):
        return False
    # Root's own group may have no other members, and where an access list lets us in (systemd's credentials), its mask
    # is shown in the place of the group's rights.
    return found.st_gid in {0, os.getegid(), *os.getgroups()}


def tell_way_out(path: str, found: os.stat_result) -> str:
    """What makes it private."""
    if _is_given(found):
        return f"chmod 600 {path}, or as it is root's: chmod 640, with the group of who runs this"
    return f"chmod 600 {path}"


def _is_given(found: os.stat_result) -> bool:
    return found.st_uid == 0 and os.geteuid() != 0
