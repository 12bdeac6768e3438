"""A data directory is one broker's, and a broker that cannot account for it touches nothing."""

import shutil
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerExitedError, BrokerProcess, directory_fingerprint
from tests.chaos.load import create_topic, read_everything
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
