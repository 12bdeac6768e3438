"""Addresses that cannot be listened on: which setting names them, why, and whether another try may help."""

import errno

from penstock import obstacles
from penstock.errors import StartupError
from penstock.server.config import Address
from penstock.server.doors.table import KINDS


def cannot_listen(listener: str, host: str, port: int, error: OSError) -> StartupError:
    """What to raise.

    An interface that has its address a moment later, or a name that is not known yet, is worth another try; a port that
    another process has is not.

    Args:
        listener: its name; that of a protocol is its setting under `listeners`, and its flag, too.
    """
    stop = "Stop what uses it, or choose" if error.errno == errno.EADDRINUSE else "Choose"
    key, another = f"listeners.{listener}", f"--{listener} HOST:PORT"
    if listener not in KINDS:
        key, another = f"listener {listener}", "its address in the list listeners"
    text = (
        f"{key} = {Address(host, port)} cannot be used: {obstacles.tell_address(error)}. {stop} another one ({another})"
    )
    return obstacles.refusal(text, error)
