import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.spec.queries import normalise, tables, tokens

CASES = [
    ("SELECT * FROM orders", "orders"),
    ("select * from Orders o", "Orders"),
    ("SELECT * FROM `orders`", "orders"),
    ("SELECT * FROM db.orders", ""),
    ("SELECT * FROM `a`.`orders`, b", "b"),
    ("SELECT a, orders.b FROM x", "x"),
    ("SELECT 'FROM orders' FROM x", "x"),
    ('SELECT "FROM orders" FROM x', "x"),
    (r"SELECT 'it\'s FROM orders' FROM x", "x"),
    ("SELECT 'it''s FROM orders' FROM x", "x"),
    (r"SELECT r'\' FROM x, y", "x y"),
    ("SELECT * FROM x -- , orders\n, y", "x y"),
    ("SELECT * FROM x /* , orders /* nested */ , z */, y", "x y"),
    ("SELECT * FROM/**/x", "x"),
    ("SELECT /*+ BROADCAST(c) */ * FROM x JOIN c USING (id)", "x c"),
    ("SELECT * FROM x LEFT ANTI JOIN c ON x.id = c.id", "x c"),
    ("SELECT * FROM a, b c, d AS e WHERE 1 IN (f, g)", "a b d"),
    ("SELECT * FROM a JOIN b ON a.offset = b.offset, c", "a b c"),
    ("SELECT * FROM a JOIN b ON a.where = b.having, c", "a b c"),
    ("SELECT * FROM a AS window, c", "a c"),
    ("SELECT * FROM (SELECT * FROM a) x, b", "a b"),
    ("SELECT * FROM (a JOIN b ON a.i = b.i), ((c))", "a b c"),
    ("SELECT x, (SELECT max(i) FROM b) FROM a WHERE i IN (SELECT i FROM c)", "b a c"),
    ("SELECT * FROM a WHERE EXISTS (TABLE b)", "a b"),
    ("SELECT * FROM STREAM(a)", "STREAM a"),
    ("SELECT * FROM STREAM a", "STREAM a"),
    ("SELECT * FROM f(TABLE(a), 3)", "f a"),
    ("SELECT * FROM a LATERAL VIEW explode(b) t AS c", "a"),
    ("SELECT * FROM a, LATERAL (SELECT * FROM b)", "a LATERAL b"),
    ("SELECT * FROM IDENTIFIER('a')", "a IDENTIFIER"),
    ("SELECT a FROM x GROUP BY a, b ORDER BY a, c", "x"),
    ("SELECT a FROM x UNION ALL SELECT b FROM y EXCEPT SELECT c FROM z", "x y z"),
    ("FROM a |> WHERE x > 1 |> JOIN b USING (i) |> SELECT c, d", "a b"),
    ("SELECT EXTRACT(HOUR FROM b), TRIM(BOTH ' ' FROM c) FROM a", "a"),
    ("SELECT * FROM a WHERE x IS DISTINCT FROM b", "a"),
    ("SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b), c", "c"),
    ("SELECT * FROM values, c", "c"),
    ("SELECT * FROM a PIVOT (sum(x) FOR y IN ('p', 'q')), b", "a b"),
    ("WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN b", "a b"),
    ("WITH a AS (SELECT * FROM a) SELECT * FROM a", "a"),
    ("WITH c (i) AS (SELECT * FROM a), d AS (SELECT * FROM c, b) SELECT * FROM d", "a b"),
    ("WITH RECURSIVE c AS (SELECT 1 UNION ALL SELECT * FROM c) SELECT * FROM c, a", "a"),
    ("SELECT * FROM (WITH c AS (SELECT * FROM a) SELECT * FROM C) JOIN c", "a c"),
    ("SELECT CAST(x AS TIMESTAMP WITH TIME ZONE) FROM a", "a"),
    ("SELECT * FROM", ""),
    (")) FROM a ((", "a"),
    ("SELECT 1", ""),
    ("", ""),
]


@pytest.mark.parametrize(("sql", "expected"), CASES)
def test_tables_of_a_query(sql: str, expected: str) -> None:
    assert tables(sql) == expected.split()


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("SELECT  a\n FROM b -- why", "SELECT a FROM b"),
        ("SELECT a/* ! */FROM b", "SELECT a FROM b"),
        ("SELECT a,b", "SELECT a , b"),
        ("SELECT `a`", "SELECT\t`a`"),
    ],
)
def test_layout_does_not_count(sql: str, same: str) -> None:
    assert normalise(sql) == normalise(same)


@pytest.mark.parametrize(
    ("sql", "other"),
    [
        ("SELECT 'a  b'", "SELECT 'a b'"),
        ("SELECT '-- a'", "SELECT '-- b'"),
        ("SELECT `a b`", "SELECT a b"),
        ("SELECT 'a''b'", "SELECT 'a' 'b'"),
        ("SELECT ab", "SELECT a b"),
    ],
)
def test_words_and_strings_count(sql: str, other: str) -> None:
    assert normalise(sql) != normalise(other)


_PIECES = [*" \n'\"`()\\,.-/*ar1$|>", "FROM ", "WITH ", "AS ", "JOIN ", "--", "/*", "*/"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join))
def test_any_text_has_tokens_and_tables(sql: str) -> None:
    assert sum(len(each.text) for each in tokens(sql)) <= len(sql)
    assert all(each.strip() for each in tables(sql) if each)
