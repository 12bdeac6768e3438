"""The texts of statements."""

from penstock.pipelines.sinks.jdbc.statements import Plan, create_table, quoted

PLAN = Plan(table='"t"', stage="s", counts="ok", columns=("id", "v"))
UPSERT = Plan(table='"t"', stage="s", counts="ok", columns=("id", "v"), keys=("id",), order_by=("lsn",), extra=("lsn",))


def test_names_are_quoted() -> None:
    assert quoted('a"b; DROP TABLE x') == '"a""b; DROP TABLE x"'


def test_insert() -> None:
    assert PLAN.changes(PLAN.winners()) == [
        'INSERT INTO "t" ("id", "v") SELECT "id", "v" FROM (SELECT "id", "v" FROM s WHERE ok) AS winners WHERE true'
    ]


def test_upsert_takes_the_last_row_that_has_a_key() -> None:
    assert UPSERT.winners() == (
        '(SELECT "id", "v", "lsn" FROM (SELECT "id", "v", "lsn", row_number() OVER (PARTITION BY "id" '
        'ORDER BY "lsn" DESC NULLS LAST) AS "_penstock_rank" FROM s WHERE ok AND "id" IS NOT NULL) AS ranked '
        'WHERE "_penstock_rank" = 1) AS winners'
    )
    assert UPSERT.changes("x") == [
        'INSERT INTO "t" ("id", "v") SELECT "id", "v" FROM x WHERE true ORDER BY "id" '
        'ON CONFLICT ("id") DO UPDATE SET "v" = excluded."v"'
    ]


def test_upsert_of_keys_alone() -> None:
    plan = Plan(table='"t"', stage="s", counts="ok", columns=("id",), keys=("id",))
    assert plan.changes("x")[0].endswith('ON CONFLICT ("id") DO NOTHING')


def test_flagged_keys_are_deleted_and_not_inserted() -> None:
    plan = Plan(table='"t"', stage="s", counts="ok", columns=("a", "b"), keys=("a", "b"), deletes=True)
    delete, insert = plan.changes_between(3, 5)
    assert delete == (
        'DELETE FROM "t" WHERE ("a", "b") IN (SELECT "a", "b" FROM "_penstock_sorted" '
        'WHERE "_penstock_number" >= 3 AND "_penstock_number" < 5 AND "_penstock_delete")'
    )
    assert 'WHERE "_penstock_number" >= 3 AND "_penstock_number" < 5 AND NOT "_penstock_delete" ORDER BY' in insert


def test_create_table() -> None:
    assert create_table("t", [("id", "bigint"), ("v", "text")], ["id"]) == (
        'CREATE TABLE t ("id" bigint, "v" text, PRIMARY KEY ("id"))'
    )
