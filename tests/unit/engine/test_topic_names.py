"""What a topic may be called."""

import pytest

from penstock.engine.topic_names import LONGEST_NAME, check_name
from penstock.errors import Code, PenstockError


@pytest.mark.parametrize("name", ["a", "Orders.2026_v-1", "...", "x" * LONGEST_NAME])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a:b", "a~b", "ä", "a\n", "x" * (LONGEST_NAME + 1)])
def test_no_names(name: str) -> None:
    with pytest.raises(PenstockError) as refused:
        check_name(name)
    assert refused.value.code is Code.INVALID_TOPIC
    assert len(str(refused.value)) < 200
