"""What the driver notes before it commits: whole or not at all, and never mistaken."""

import contextlib
from pathlib import Path

import pytest

from penstock.pipelines.errors import SinkError
from penstock.pipelines.home import sealed
from penstock.pipelines.sinks.bigquery.intents import Intents

STREAMS = ("projects/p/datasets/d/tables/t/streams/a", "projects/p/datasets/d/tables/t/streams/b")


@pytest.fixture
def intents(tmp_path: Path) -> Intents:
    return Intents(tmp_path / "state", "warehouse")


def test_nothing_is_noted_of_a_new_query(intents: Intents) -> None:
    assert intents.load("q") is None


def test_open_then_done(intents: Intents) -> None:
    opened = intents.open("q", 7, STREAMS, 12)
    found = intents.load("q")
    assert found == opened
    assert (found.batch, found.streams, found.rows, found.done) == (7, STREAMS, 12, False)
    assert 0 <= found.age_s < 60
    intents.finish(opened)
    assert intents.load("q").done


def test_queries_do_not_share_a_note_whatever_their_names(intents: Intents) -> None:
    intents.open("a/../b", 1, STREAMS, 1)
    intents.open("b", 2, STREAMS, 1)
    assert intents.load("a/../b").batch == 1
    assert intents.load("b").batch == 2
    assert intents.path("a/../b").parent == intents.path("b").parent


@pytest.mark.parametrize("point", ["open", "os.fsync", "os.replace"])
def test_a_crash_while_noting_leaves_the_note_before(
    intents: Intents, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    intents.finish(intents.open("q", 1, STREAMS, 5))

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if point == "open":
            patch.setattr(sealed, "open", crash, raising=False)
        else:
            patch.setattr(f"penstock.pipelines.home.sealed.{point}", crash)
        with pytest.raises(KeyboardInterrupt):
            intents.open("q", 2, STREAMS, 6)
    found = intents.load("q")
    assert (found.batch, found.done) == (1, True)


def test_a_flipped_bit_in_any_byte_is_found(intents: Intents) -> None:
    intents.open("q", 7, STREAMS, 12)
    path = intents.path("q")
    whole, found = path.read_bytes(), intents.load("q")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with contextlib.suppress(SinkError):
            assert intents.load("q") == found, f"byte {at} changed the note unseen"


@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_a_cut_note_is_found(intents: Intents, keep: int) -> None:
    intents.open("q", 7, STREAMS, 12)
    path = intents.path("q")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SinkError, match=r"sink warehouse: .*remove the file"):
        intents.load("q")
