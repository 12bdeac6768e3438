"""A port that another process has: which setting, why, the way out; and that another try is of no use."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StartupError, WrongSettings
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Listeners
from penstock.server.listening import cannot_listen

FREE = Address("127.0.0.1", 0)


async def start(config: Config) -> None:
    broker = Broker(config)
    try:
        await broker.start()
    finally:
        await broker.stop()


@pytest.mark.parametrize("listener", ["kafka", "http"])
async def test_a_port_in_use(listener: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        listeners: dict[str, Any] = {"kafka": FREE, "http": FREE, listener: address}
        with pytest.raises(WrongSettings) as refusal:
            await start(Config(data_dir=tmp_path, listeners=Listeners(**listeners)))
    assert str(refusal.value) == (
        f"listeners.{listener} = {address} cannot be used: Address already in use. Stop what uses it, or choose "
        f"another one (--{listener} HOST:PORT)"
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EADDRINUSE, WrongSettings),
        (errno.EACCES, WrongSettings),
        (errno.EADDRNOTAVAIL, StartupError),
        (errno.EMFILE, StartupError),
    ],
)
def test_only_what_may_pass_is_worth_another_try(number: int, kind: type[StartupError]) -> None:
    refusal = cannot_listen("internal", "::1", 9094, OSError(number, f"error while attempting to bind: {number}"))
    assert type(refusal) is kind
    assert str(refusal).startswith(f"listeners.internal = [::1]:9094 cannot be used: {os.strerror(number)}. ")
    assert str(refusal).endswith("another one (--internal HOST:PORT)")


def test_a_name_that_nobody_knows_may_be_known_later() -> None:
    refusal = cannot_listen("kafka", "nowhere", 1, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert type(refusal) is StartupError
    assert "nowhere:1 cannot be used: Name or service not known. Choose another" in str(refusal)
