"""Small files as a person reads them."""

from penstock.storage.log.state import LogState
from penstock.storage.offline.description import describe_small_file
from penstock.testing.faulty_disk import FaultyDisk


def test_a_state_tells_of_its_producers() -> None:
    disk, state = FaultyDisk(), LogState()
    state.producers.note_epoch(7, 2, 1000, 5)
    disk.make_dirs("/p")
    disk.open("/p/state", create=True).write_at(state.encode(), 0)
    told = describe_small_file(disk, "/p/state")
    assert told["producers"] == [{"producer_id": 7, "epoch": 2, "seen_ms": 1000, "batches": [], "coordinator_epoch": 5}]
