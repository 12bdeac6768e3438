from pathlib import Path

import pytest

from penstock.pipelines.spec import definition, load
from penstock.pipelines.spec.sample import SAMPLES, sample


@pytest.fixture
def _plain_sinks() -> None:
    """Samples are for the sinks that there are."""


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_are_pipelines(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", "broker:1")
    monkeypatch.setattr("penstock.pipelines.Pipeline", definition.Pipeline, raising=False)
    path = tmp_path / ("new.py" if kind == "python" else "new.yaml")
    path.write_text(sample(kind, "sold"), encoding="utf-8")
    spec = load(path)
    assert (spec.name, spec.server, spec.dead_letters.target) == ("sold", "broker:1", "sold.dead")
    assert spec.sinks[0].kind == ("delta" if kind == "delta" else "topic")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("\ufeff" + sample("topic", "sold"), encoding="utf-8")
    assert load(path).name == "sold"
