"""Sealed files: whole or refused, never taken for something else."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.pipelines.errors import PipelineError
from penstock.pipelines.home import sealed

BODY = {"nodes": {"source orders": "ab12"}, "at": 1.5, "none": None, "text": "ü"}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert sealed.load(path, "") is None
    sealed.save(path, {"old": 1})
    sealed.save(path, BODY)
    assert sealed.load(path, "") == BODY
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_white_space_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    sealed.save(path, BODY)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert sealed.load(path, "") == BODY


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Or changes nothing: a blank for another, a letter for its escaped form."""
    path = tmp_path / "a.json"
    sealed.save(path, BODY)
    good = path.read_bytes()
    for at in range(len(good) * 8):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        path.write_bytes(bad)
        with suppress(PipelineError):
            assert sealed.load(path, "") == BODY


@pytest.mark.parametrize("size", [0, 1, 30, -1])
def test_a_file_cut_short(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.json"
    sealed.save(path, BODY)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PipelineError, match=r"a\.json is damaged: no JSON.*\. Restore it"):
        sealed.load(path, "Restore it")


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": "1"}', '{"version": 1}', '{"version": 1, "body": 7}'])
def test_other_json_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(PipelineError, match="is damaged"):
        sealed.load(path, "")


def test_changed_values(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    sealed.save(path, BODY)
    path.write_text(path.read_text().replace("ab12", "ab13"))
    with pytest.raises(PipelineError, match="its checksum does not match"):
        sealed.load(path, "")


def test_a_later_release_s_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"version": 2, "sha256": "..."}')
    with pytest.raises(PipelineError, match=r"format version 2; this release reads up to 1\. Use the release"):
        sealed.load(path, "")


def test_a_failed_save_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    sealed.save(path, BODY)
    with pytest.raises(TypeError):
        sealed.save(path, {"a": object()})
    assert sealed.load(path, "") == BODY
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
