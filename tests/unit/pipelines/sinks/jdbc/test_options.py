"""Which keys go together, and what a table's name may be."""

from typing import Any

import pytest

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.jdbc.options import KEYS, TableName, parse_table

from .stand_in import open_jdbc


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("items", TableName("", "items")),
        ("sales.items", TableName("sales", "items")),
        ('"sales.eu".items', TableName("sales.eu", "items")),
        ('"say ""hi"""', TableName("", 'say "hi"')),
    ],
)
def test_table_name(text: str, name: TableName) -> None:
    assert parse_table(text, "shop") == name


@pytest.mark.parametrize("text", ["", "a.b.c", "a.", ".a", 'a"b', '"a'])
def test_table_name_that_is_none(text: str) -> None:
    with pytest.raises(SinkError, match=r"schema\.table"):
        parse_table(text, "shop")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"mode": "upsert"}, "needs `keys`"),
        ({"keys": ["id"]}, "`keys`.*mode: upsert"),
        ({"order_by": "at"}, "`order_by`.*mode: upsert"),
        ({"delete_when": "gone"}, "`delete_when`.*mode: upsert"),
        ({"mode": "upsert", "keys": ["id"], "without": ["id"]}, "`without` leaves out id"),
        ({"table": "attached.items"}, "one schema"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        open_jdbc("sqlite:shop.db", **keys)


def test_destination_comes_first_and_the_password_is_secret() -> None:
    assert KEYS[0].name == "jdbc"
    assert [key.name for key in KEYS if key.secret] == ["password"]
