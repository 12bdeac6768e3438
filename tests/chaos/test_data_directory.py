"""A data directory is one broker's, and a broker that cannot account for it touches nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.storage.kept_ends import load_ends
from penstock.storage.local_disk import LocalDisk
from tests.chaos.broker_process import BrokerExitedError, BrokerProcess, directory_fingerprint
from tests.chaos.load import create_topic, read_everything, wait_until
from tests.chaos.wire import Wire

pytestmark = pytest.mark.slow


def with_some_records(broker: BrokerProcess) -> None:
    broker.start()
    create_topic(broker.bootstrap, "t", 1)
    with Wire(broker.bootstrap) as wire:
        for number in range(10):
            assert wire.produce_one("t", f"{number}:".encode()).error_code == 0


def test_a_second_broker_refuses_the_directory(broker: BrokerProcess, tmp_path: Path) -> None:
    with_some_records(broker)
    other_place = tmp_path / "second"
    other_place.mkdir()
    with BrokerProcess(broker.data_dir, other_place) as second, pytest.raises(BrokerExitedError) as refusal:
        second.start()
    assert refusal.value.returncode == 1
    assert str(broker.data_dir) in refusal.value.output
    assert "in use" in refusal.value.output
    assert "Traceback" not in refusal.value.output
    with Wire(broker.bootstrap) as wire:
        assert wire.produce_one("t", b"10:").base_offset == 10
    assert len(read_everything(broker.bootstrap, "t", 1)[0].records) == 11


def test_the_lock_ends_with_its_process(broker: BrokerProcess) -> None:
    with_some_records(broker)
    broker.kill()
    broker.start()
    assert len(read_everything(broker.bootstrap, "t", 1)[0].records) == 10


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
def test_lost_metadata_is_not_taken_for_an_empty_broker(broker: BrokerProcess, clean: bool) -> None:
    with_some_records(broker)
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    saved = broker.data_dir.with_name("saved-meta")
    shutil.move(broker.data_dir / "meta", saved)
    before = directory_fingerprint(broker.data_dir)
    with pytest.raises(BrokerExitedError) as refusal:
        broker.start()
    assert refusal.value.returncode == 1
    assert "meta" in refusal.value.output
    assert any(word in refusal.value.output for word in ("restore", "backup", "copy")), "no way out is named"
    assert "Traceback" not in refusal.value.output
    assert directory_fingerprint(broker.data_dir) == before
    # With the metadata back, everything is there.
    shutil.move(saved, broker.data_dir / "meta")
    broker.start()
    assert len(read_everything(broker.bootstrap, "t", 1)[0].records) == 10


def test_an_old_copy_of_a_partition_is_not_served_until_it_is_accepted(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    create_topic(broker.bootstrap, "t", 2)

    def write(numbers: range, *partitions: int) -> None:
        with Wire(broker.bootstrap) as wire:
            for number in numbers:
                for partition in partitions:
                    assert wire.produce_one("t", f"{number}:".encode(), partition).base_offset == number

    def kept() -> list[int]:
        return next(iter(load_ends(LocalDisk(), str(broker.data_dir / "meta")).values()), [])

    write(range(4), 0, 1)
    broker.kill()
    shutil.copytree(broker.data_dir / "logs" / "t" / "0", tmp_path / "old-copy")
    broker.start()
    write(range(4, 10), 0, 1)
    wait_until(lambda: kept() == [10, 10], 30, "the ends are kept")
    broker.kill()
    shutil.rmtree(broker.data_dir / "logs" / "t" / "0")
    shutil.copytree(tmp_path / "old-copy", broker.data_dir / "logs" / "t" / "0")

    for stop in (broker.kill, broker.stop):  # however often it starts, and however it ended
        broker.start()
        told = broker.health()
        assert told["offline_partitions"] == ["t-0"]
        assert told["status"] == "degraded"
        assert any("t-0" in reason and "10 were durable" in reason for reason in told["reasons"])
        for words in ("partition is offline", "10 were durable", "penstock log accept"):
            assert words in broker.output()
        with Wire(broker.bootstrap) as wire:
            assert wire.produce_one("t", b"10:", 0).error_code != 0
        stop()
    broker.start()
    write(range(10, 12), 1)
    assert broker.stop() == 0

    accept = [broker.program, "log", "accept", "t-0", "--yes", "--data-dir", str(broker.data_dir)]
    done = subprocess.run(accept, capture_output=True, text=True, check=True)
    assert "4 to 9 are given out again" in done.stdout
    broker.start()
    assert broker.health()["offline_partitions"] == []
    write(range(4, 6), 0)
    logs = read_everything(broker.bootstrap, "t", 2)
    assert [len(logs[partition].records) for partition in (0, 1)] == [6, 12]


def test_a_single_brokers_directory_does_not_become_a_members_or_the_other_way_round(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with_some_records(broker)
    assert broker.stop() == 0
    before = directory_fingerprint(broker.data_dir)
    work = tmp_path / "member"
    work.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("not looked at before the directory")
    cluster = {"cluster": {"store": "etcd://127.0.0.1:9", "secret_file": str(secret)}}
    with BrokerProcess(broker.data_dir, work, config=cluster) as member, pytest.raises(BrokerExitedError) as refusal:
        member.start()
    assert refusal.value.returncode == 2
    assert "belongs to a broker on its own" in refusal.value.output
    assert directory_fingerprint(broker.data_dir) == before
    (broker.data_dir / "cluster").write_bytes(b"")
    (broker.data_dir / "meta" / "metadata.db").rename(tmp_path / "metadata.db")
    with pytest.raises(BrokerExitedError) as refusal:
        broker.start()
    assert refusal.value.returncode == 2
    assert "belongs to a broker of a cluster" in refusal.value.output
