"""A broker that asks who somebody is: one listener takes SCRAM, another PLAIN as well, the third asks nobody."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from penstock.server.config import Address, Config, Defaults, Listener, Listeners, Security
from penstock.testing.embedded import EmbeddedBroker, _LoopThread
from penstock.testing.held_port import HOST, HeldPort

ADMIN_PASSWORD = "the first, 5 words=long"  # noqa: S105 - with what SCRAM has signs of its own for


class Guarded(NamedTuple):
    """`scram`, `plain` and `open` are addresses; `admin` holds the password of user admin."""

    scram: str
    plain: str
    open: str
    admin: Path


@contextmanager
def guarded_broker(directory: Path, mode: str = "closed", seal_key_file: Path | None = None) -> Iterator[Guarded]:
    admin = directory / "admin.password"
    admin.touch(0o600)
    admin.write_text(f"{ADMIN_PASSWORD}\n")
    with ExitStack() as held:
        scram, plain, free, http = ports = [HeldPort() for _ in range(4)]
        for port in ports:
            held.callback(port.release)
        thread = _LoopThread()
        held.callback(thread.close)
        listeners = Listeners(
            kafka=Address(HOST, scram.number),
            http=Address(HOST, http.number),
            more=(
                Listener("passwords", "kafka", Address(HOST, plain.number), None, ("plain", "scram", "key")),
                Listener("anybody", "kafka", Address(HOST, free.number), None, ()),
            ),
            auth=MappingProxyType({"kafka": ("scram",)}),
        )
        defaults = Defaults(topic=MappingProxyType({"flush": "os"}), partitions=1)
        security = Security(mode=mode, admin_password_file=admin, seal_key_file=seal_key_file)
        config = Config(data_dir=directory / "data", listeners=listeners, defaults=defaults, security=security)
        broker = EmbeddedBroker(config, thread)
        broker.start()
        held.callback(broker.stop)
        yield Guarded(f"{HOST}:{scram.number}", f"{HOST}:{plain.number}", f"{HOST}:{free.number}", admin)
