"""A broker for all cases, and a fresh terminal with `penstock` on its path for each."""

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import EmbeddedBroker, embedded_broker

from .tmux import Terminal, shell_environment


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(partitions=1, topic_defaults={"flush": "os"}) as running:
        yield running


@pytest.fixture
def terminal(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed; scripts/system-packages installs it")
    programs = Path(sys.executable).parent
    opened = Terminal(shell_environment(tmp_path, programs, PENSTOCK_SERVER=broker.bootstrap))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"
