"""A port that stays one broker's own while it is stopped and started again.

A bound socket that does not listen refuses connections, and the kernel gives its port to nobody else: not to another
program, and not to a client that keeps knocking and would then be connected to itself. A listener may join it, as both
allow the address to be reused and only one of them listens.
"""

import socket
from typing import Final

from penstock.errors import StartupError

HOST: Final = "127.0.0.1"


class HeldPort:
    """
    Args:
        port: 0 lets the system choose.

    Raises:
        StartupError: another program has it, or it is none.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            why = f"{HOST}:{port} cannot be used: {getattr(error, 'strerror', None) or error}"
            raise StartupError(f"{why}; stop what uses it, name another port, or none for a free one") from None
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
