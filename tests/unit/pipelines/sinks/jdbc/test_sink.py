"""What the sink does, the same in both databases."""

import pytest

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.parts import WritePart

from .database import Database, sweep_all
from .stand_in import Letters, Rows

DDL = "id bigint, v string"
FIRST = BatchId("q", 0)
UPSERT = {"mode": "upsert", "keys": ["id"]}


def items(*partitions: list[tuple[int | None, str | None]]) -> Rows:
    return Rows(DDL, [[{"id": id_, "v": v} for id_, v in each] for each in partitions])


def test_rows_are_inserted_once(database: Database, letters: Letters) -> None:
    sink = database.sink()
    sink.probe()
    rows = items([(number, f"v{number}") for number in range(20)], [(20, None)], [])
    sink.prepare(rows.schema)
    assert not sink.is_written(FIRST)
    assert sink.write(rows, FIRST, letters) == 21
    assert database.run("SELECT count(*), count(DISTINCT id), sum(id), max(v) FROM items") == [(21, 21, 210, "v9")]
    assert sink.is_written(FIRST)
    assert not sink.is_written(BatchId("q", 1))
    sink.close()
    again = database.sink()
    again.prepare(rows.schema)
    assert again.is_written(FIRST)
    assert not letters.rejected
    assert database.leftovers() == []


def test_batch_without_rows_is_remembered(database: Database, letters: Letters) -> None:
    sink = database.sink()
    rows = items([])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 0
    assert sink.is_written(FIRST)


def test_older_batch_is_an_error(database: Database, letters: Letters) -> None:
    sink = database.sink()
    rows = items([(1, "a")])
    sink.prepare(rows.schema)
    sink.write(rows, BatchId("q", 5), letters)
    with pytest.raises(SinkError, match="older than the sink"):
        sink.is_written(BatchId("q", 4))
    with pytest.raises(SinkError, match="older than the sink"):
        sink.write(rows, BatchId("q", 4), letters)
    assert database.run("SELECT count(*) FROM items") == [(1,)]


def test_driver_that_comes_second_writes_nothing(database: Database, letters: Letters) -> None:
    """Both have asked before either has written."""
    late, early = database.sink(), database.sink()
    rows = items([(1, "a"), (2, "b")])
    for sink in (late, early):
        sink.prepare(rows.schema)
        assert not sink.is_written(FIRST)
    late_rows = items([(1, "a"), (2, "b")])
    late_rows.after_tasks = lambda write: _same(early.write(rows, FIRST, letters), 2)
    assert late.write(late_rows, FIRST, letters) == 2
    assert database.run("SELECT id FROM items ORDER BY id") == [(1,), (2,)]
    assert database.leftovers() == []


def _same(value: object, wanted: object) -> None:
    assert value == wanted


def test_queries_and_sinks_have_marks_of_their_own(database: Database, letters: Letters) -> None:
    rows = items([(1, "a")])
    one, other = database.sink(sink="one"), database.sink(sink="other", table="more")
    for sink in (one, other):
        sink.prepare(rows.schema)
    one.write(rows, FIRST, letters)
    assert one.is_written(FIRST)
    assert not other.is_written(FIRST)
    assert not one.is_written(BatchId("backfill", 0))
    other.write(rows, FIRST, letters)
    one.write(rows, BatchId("backfill", 0), letters)
    assert database.run("SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM more)") == [(2, 1)]
    marks = database.run("SELECT query, sink, batch, rows FROM _penstock_commits ORDER BY 1, 2")
    assert marks == [("backfill", "one", 0, 1), ("q", "one", 0, 1), ("q", "other", 0, 1)]


def test_upsert_replaces_and_keeps_the_last(database: Database, letters: Letters) -> None:
    sink = database.sink(**UPSERT, order_by=["lsn"], without=["lsn"])
    ddl = "id bigint, v string, lsn bigint"
    first = Rows(ddl, [[{"id": 1, "v": "old", "lsn": 1}, {"id": 2, "v": "two", "lsn": 2}]])
    sink.prepare(first.schema)
    assert sink.write(first, FIRST, letters) == 2
    second = Rows(
        ddl,
        [
            [{"id": 1, "v": "newest", "lsn": 9}, {"id": 3, "v": "unordered", "lsn": None}],
            [{"id": 1, "v": "new", "lsn": 8}, {"id": 3, "v": "three", "lsn": 3}],
        ],
    )
    assert sink.write(second, BatchId("q", 1), letters) == 2
    assert database.run("SELECT * FROM items ORDER BY id") == [(1, "newest"), (2, "two"), (3, "three")]


def test_repeated_key_without_an_order_is_an_error(database: Database, letters: Letters) -> None:
    sink = database.sink(**UPSERT)
    rows = items([(1, "a"), (7, "b")], [(7, "c")])
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match=r"2 rows .* key id = 7.*order_by") as caught:
        sink.write(rows, FIRST, letters)
    assert not caught.value.retriable
    assert database.run("SELECT count(*) FROM items") == [(0,)]
    assert not sink.is_written(FIRST)
    assert database.leftovers() == []


def test_flagged_rows_delete(database: Database, letters: Letters) -> None:
    sink = database.sink(**UPSERT, order_by=["lsn"], delete_when="op = 'd'", without=["op", "lsn"])
    ddl = "id bigint, v string, op string, lsn bigint"

    def rows(*changes: tuple[int, str, int]) -> Rows:
        made = [
            {"id": id_, "v": f"{id_}{op}{lsn}", "lsn": lsn, "_penstock_delete": op == "d"} for id_, op, lsn in changes
        ]
        return Rows(ddl, [made])

    first = rows((1, "c", 1), (2, "c", 2), (3, "c", 3), (3, "d", 4))
    sink.prepare(first.schema)
    assert sink.write(first, FIRST, letters) == 2
    assert sink.write(rows((1, "d", 5), (2, "d", 6), (2, "c", 7), (9, "d", 8)), BatchId("q", 1), letters) == 2
    assert database.run("SELECT id, v FROM items") == [(2, "2c7")]


def test_key_of_several_columns(database: Database, letters: Letters) -> None:
    sink = database.sink(mode="upsert", keys=["b", "a"], delete_when="gone")
    rows = Rows("a int, b string, gone boolean", [[{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}]])
    sink.prepare(rows.schema)
    sink.write(rows, FIRST, letters)
    gone = Rows(rows.ddl, [[{"a": 1, "b": "x", "_penstock_delete": True}, {"a": 1, "b": "y"}]])
    sink.write(gone, BatchId("q", 1), letters)
    assert sorted(database.run("SELECT a, b FROM items")) == [(1, "y"), (2, "x")]


def test_refused_rows_are_rejected_and_the_rest_written(database: Database, letters: Letters) -> None:
    database.run(
        "CREATE TABLE items (id bigint NOT NULL CHECK (id % 100 <> 13), v varchar(100) UNIQUE, n int DEFAULT 7)"
    )
    sink = database.sink()
    rows = items([(number, f"v{number}") for number in range(150)], [(213, "x"), (None, "null"), (999, "v5")])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 148
    assert database.run("SELECT count(*), count(DISTINCT v), min(n) FROM items") == [(148, 148, 7)]
    refused = {str(row["id"]): each.reason.lower() for row, each in zip(letters.rows, letters.rejected, strict=True)}
    assert set(refused) in ({"13", "113", "213", "None", "999"}, {"13", "113", "213", "None", "5"})
    assert "check" in refused["13"]
    assert "null" in refused["None"]
    assert "unique" in refused.get("999", refused.get("5", ""))
    assert sink.is_written(FIRST)


def test_refused_upserts_and_deletes(database: Database, letters: Letters) -> None:
    database.run("CREATE TABLE items (id bigint PRIMARY KEY, v varchar(100) CHECK (v <> 'bad'))")
    database.run("CREATE TABLE orders (item bigint REFERENCES items (id))")
    database.run("INSERT INTO items VALUES (1, 'held'), (2, 'free')")
    database.run("INSERT INTO orders VALUES (1)")
    sink = database.sink(**UPSERT, delete_when="gone")
    gone = [{"id": 1, "_penstock_delete": True}, {"id": 2, "_penstock_delete": True}]
    rows = Rows("id bigint, v string, gone boolean", [[*gone, {"id": 3, "v": "bad"}, {"id": 4, "v": "good"}]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 2
    assert database.run("SELECT * FROM items ORDER BY id") == [(1, "held"), (4, "good")]
    assert sorted(row["id"] for row in letters.rows) == [1, 3]


def test_row_without_a_key_is_rejected(database: Database, letters: Letters) -> None:
    """Two of them are no repetition of a key."""
    sink = database.sink(**UPSERT)
    rows = items([(None, "a"), (1, "b")], [(None, "c")])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1
    assert sorted(row["v"] for row in letters.rows) == ["a", "c"]
    assert {each.reason for each in letters.rejected} == {"the key id is null"}


def test_more_refused_rows_than_allowed(database: Database, letters: Letters) -> None:
    database.run("CREATE TABLE items (id bigint CHECK (id < 10), v varchar(10))")
    sink = database.sink(max_rejects=3)
    rows = items([(number, "v") for number in range(14)])
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match=r"more than 3 rows.*max_rejects") as caught:
        sink.write(rows, FIRST, letters)
    assert not caught.value.retriable
    assert not letters.rejected
    assert database.run("SELECT count(*) FROM items") == [(0,)]
    enough = database.sink(max_rejects=4)
    assert enough.write(rows, FIRST, letters) == 10
    assert len(letters.rejected) == 4


def test_rows_are_rejected_again_when_the_batch_is_repeated(database: Database) -> None:
    database.run("CREATE TABLE items (id bigint CHECK (id < 3), v varchar(10))")
    sink = database.sink()
    rows = items([(number, "v") for number in range(5)])
    sink.prepare(rows.schema)

    def broken(rejected: object) -> None:
        raise SinkUnavailable("the dead letters are away")

    with pytest.raises(SinkUnavailable, match="dead letters"):
        sink.write(rows, FIRST, broken)
    assert not sink.is_written(FIRST)
    letters = Letters()
    assert sink.write(rows, FIRST, letters) == 3
    assert [row["id"] for row in letters.rows] == [3, 4]


def test_what_nobody_needs_is_swept(database: Database, letters: Letters) -> None:
    """A driver died while its tasks were at work; another one's are still at work."""
    rows = items([(1, "a")])
    dead, alive, third = database.sink(), database.sink(), database.sink()

    class Died(BaseException):
        pass

    def die(write: WritePart) -> None:
        dead.close()
        raise Died

    alive.prepare(rows.schema)
    dead.prepare(rows.schema)
    before = []

    def look(write: WritePart) -> None:
        before.extend(database.leftovers())
        third.prepare(rows.schema)
        third.write(items([(3, "c")]), BatchId("third", 0), letters)
        assert database.leftovers() == before

    with pytest.raises(Died):
        dead.write(Rows(DDL, [[{"id": 2, "v": "b"}]], die), BatchId("dead", 0), letters)
    sweep_all(third, rows.schema, database.leftovers)
    alive.write(Rows(DDL, [[{"id": 1, "v": "a"}]], look), FIRST, letters)
    assert len(before) == 1
    assert database.leftovers() == []
    assert sorted(database.run("SELECT id FROM items")) == [(1,), (3,)]


@pytest.mark.parametrize(
    ("table", "ddl", "says"),
    [
        ("(id bigint)", DDL, r'column v \(string\) is missing.*ALTER TABLE .*"items" ADD COLUMN "v"'),
        ("(id varchar(9), v varchar(9))", DDL, r"column id is varchar\(9\)|column id is character varying\(9\)"),
        ("(id bigint, v bigint)", DDL, "column v is bigint, the rows have string"),
        ("(id bigint, v varchar(9), n int NOT NULL)", DDL, "column n must not be null"),
        ("(id bigint, v varchar(9), n bigint GENERATED ALWAYS AS (id) STORED)", DDL + ", n bigint", "n is generated"),
    ],
)
def test_table_that_does_not_do(database: Database, table: str, ddl: str, says: str) -> None:
    database.run(f"CREATE TABLE items {table}")
    sink = database.sink()
    with pytest.raises(SinkError, match=f"(?is)sink shop: table items: .*(?:{says})"):
        sink.prepare(Rows(ddl, []).schema)


def test_every_difference_is_told_at_once(database: Database) -> None:
    database.run("CREATE TABLE items (a varchar(9), n int NOT NULL)")
    with pytest.raises(SinkError, match=r"(?s)column a is.*column b .*column n must"):
        database.sink().prepare(Rows("a double, b int", []).schema)


@pytest.mark.parametrize("unique", ["UNIQUE (v, id)", "PRIMARY KEY (id, v)"])
def test_upsert_needs_a_unique_index(database: Database, unique: str, letters: Letters) -> None:
    database.run(f"CREATE TABLE items (id bigint, v varchar(9), {unique})")
    rows = items([(1, "a")])
    with pytest.raises(SinkError, match="no unique index on id: CREATE UNIQUE INDEX"):
        database.sink(**UPSERT).prepare(rows.schema)
    sink = database.sink(mode="upsert", keys=["id", "v"])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1


def test_partial_index_is_no_unique_index(database: Database) -> None:
    database.run("CREATE TABLE items (id bigint, v varchar(9))")
    database.run("CREATE UNIQUE INDEX items_id ON items (id) WHERE v IS NOT NULL")
    with pytest.raises(SinkError, match="no unique index"):
        database.sink(**UPSERT).prepare(items([]).schema)


def test_table_is_not_made_against_the_word(database: Database) -> None:
    database.run("CREATE TABLE other (id bigint)")
    sink = database.sink(create=False)
    with pytest.raises(SinkError, match=r"table items is not .*create: true"):
        sink.probe()
    with pytest.raises(SinkError, match=r"table items is not .*create: true"):
        sink.prepare(items([]).schema)


def test_names_of_all_sorts(database: Database, letters: Letters) -> None:
    sink = database.sink(table='"Ünïcode ""table"" %s.x; --"', mode="upsert", keys=['Key"1'], order_by=["select"])
    rows = Rows('`Key"1` int, `select` int, `a b` string', [[{'Key"1': 1, "select": 2, "a b": "%s $x {}"}]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1
    assert database.run('SELECT * FROM "Ünïcode ""table"" %s.x; --"') == [(1, 2, "%s $x {}")]
    assert sink.is_written(FIRST)
