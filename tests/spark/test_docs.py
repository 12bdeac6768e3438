"""The guide's Python examples run, in their order, as they stand; only the broker's address is another one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers.broker import Broker

from .publisher import Publisher

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_quick_start_runs(
    broker: Broker,
    spark: "SparkSession",
    publisher: Publisher,
    new_topic: Callable[..., str],
    monkeypatch: "pytest.MonkeyPatch",
    capsys: "pytest.CaptureFixture[str]",
) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    code = "\n".join(blocks).replace("127.0.0.1:9092", broker.bootstrap)
    for topic, partitions in re.findall(r"penstock topic create (\w+)(?: --partitions (\d+))?", text):
        own = new_topic(topic, partitions=int(partitions or 1))
        code = code.replace(f'"{topic}"', f'"{own}"')
    monkeypatch.setattr("penstock.spark.session", lambda name: spark, raising=False)
    exec(compile(code, str(GUIDE), "exec"), {})  # noqa: S102 - our own manual
    assert "sum(amount)" in capsys.readouterr().out
