"""Addresses that cannot be listened on: which setting names them, why, and whether another try may help."""

import errno

from penstock import obstacles
from penstock.errors import StartupError
from penstock.server.config import Address


def cannot_listen(listener: str, host: str, port: int, error: OSError) -> StartupError:
    """What to raise.

    An interface that has its address a moment later, or a name that is not known yet, is worth another try; a port that
    another process has is not.

    Args:
        listener: its setting under `listeners`, which is its flag too.
    """
    stop = "Stop what uses it, or choose" if error.errno == errno.EADDRINUSE else "Choose"
    text = (
        f"listeners.{listener} = {Address(host, port)} cannot be used: {obstacles.tell_address(error)}. "
        f"{stop} another one (--{listener} HOST:PORT)"
    )
    return obstacles.refusal(text, error)
