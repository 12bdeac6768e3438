from collections import Counter
from pathlib import Path

import pytest

from penstock.pipelines.errors import PipelineError
from penstock.pipelines.run.counters import FILE, Counters, load, save


def test_counters_survive(tmp_path: Path) -> None:
    counters = Counters("q", 3, 4, 5, Counter(lake=6), Counter(lake=1), {"clean": Counter(positive=2)})
    save(tmp_path, counters)
    assert load(tmp_path) == counters
    assert load(tmp_path / "elsewhere") == Counters()


def test_a_batch_is_included_once() -> None:
    counters = Counters("q", 3)
    assert [counters.includes("q", batch) for batch in (2, 3, 4)] == [True, True, False]
    assert not counters.includes("another", 3)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, Counters("q", 3, 4, 5, Counter(lake=6)))
    whole = (tmp_path / FILE).read_bytes()
    for at in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(PipelineError):
            load(tmp_path)
