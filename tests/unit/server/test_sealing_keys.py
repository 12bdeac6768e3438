"""Which keys brokers have while one is replaced by another: at no moment one of them meets what it cannot open."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.engine.access import Access
from penstock.errors import StartupError, WrongSettings
from penstock.security.guard import Guard
from penstock.security.loader import in_pool
from penstock.security.modes import Mode
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.secret_files import load_key
from penstock.server.config import Security
from penstock.server.sealing_keys import load_sealing_keys
from penstock.server.system_clock import SystemClock
from penstock.testing.memory_metadata import MemoryStore

OF_CLUSTER = Secret(b"c" * 32)


def keys(seals: Path | None, *others: Path, own: Path | None = None, of_cluster: Secret | None = None) -> SealingKeys:
    settings = Security(seal_key_file=seals, other_seal_key_files=others)
    return load_sealing_keys(settings, Random(3), own=None if own is None else str(own), of_cluster=of_cluster)


def made(path: Path, seed: int) -> Path:
    load_key(str(path), Random(seed))
    return path


def test_a_broker_on_its_own_makes_its_key_once(tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    first = keys(None, own=own)
    assert keys(None, own=own).current == first.current
    moved = keys(made(tmp_path / "named.key", 1), own=own)
    assert moved.current != first.current and set(moved.known) == {moved.current, first.current}


def test_a_broker_of_a_cluster_makes_none(tmp_path: Path) -> None:
    for settings in ((tmp_path / "none.key",), (None,)):
        with pytest.raises(WrongSettings, match="penstock security new-key"):
            keys(*settings)
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_goes_before_the_clusters_secret_whose_key_still_opens(tmp_path: Path) -> None:
    plain = keys(None, of_cluster=OF_CLUSTER)
    named = keys(made(tmp_path / "a", 1), of_cluster=OF_CLUSTER)
    assert named.current != plain.current and plain.current in named.known


@pytest.mark.parametrize("body", [None, b"", b"penstock-key 2\n"])
def test_another_key_that_cannot_be_read_stops_the_start(tmp_path: Path, body: bytes | None) -> None:
    other = tmp_path / "other.key"
    if body is not None:
        other.touch(0o600)
        other.write_bytes(body)
    with pytest.raises(StartupError, match=r"other\.key"):
        keys(made(tmp_path / "a", 1), other)


def test_a_key_is_replaced_while_brokers_run(tmp_path: Path) -> None:
    """Three brokers, restarted one after the other for each step: every one opens every secret after each restart."""
    old, new = made(tmp_path / "old", 1), made(tmp_path / "new", 2)
    before, knowing, sealing, after = keys(old), keys(old, new), keys(new, old), keys(new)

    async def main() -> None:
        store, clock = MemoryStore(), SystemClock()
        brokers = [
            Guard(
                store,
                Access(),
                clock,
                Random(at),
                in_pool,
                lambda error: None,
                mode=Mode.CLOSED,
                supers=(),
                sealing=before,
            )
            for at in range(3)
        ]
        await brokers[0].loader.refresh()
        await brokers[0].users.create("alice", None)
        secrets: dict[str, Secret] = {}

        async def look() -> None:
            """Each makes one more, and each opens all."""
            for guard in brokers:
                await guard.loader.refresh()
                key = await guard.keys.create("alice", signs=True)
                secrets[key.id] = key.secret
            for guard in brokers:
                await guard.loader.refresh()
                assert {each: guard.keys.signing_secret(each) for each in secrets} == secrets

        await look()
        for step in (knowing, sealing):
            for guard in brokers:
                guard.keys._sealing = step
                await look()
        await brokers[1].keys.reseal()
        await look()
        for guard in brokers:
            guard.keys._sealing = after
            await look()
        assert set(brokers[0].keys.sealed_by().counts) == {after.current}

    asyncio.run(main())
