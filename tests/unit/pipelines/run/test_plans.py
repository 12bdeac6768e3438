import pytest

from penstock.pipelines.run.plans import explain_join, find_endless_joins, find_state

STREAM = "StreamingRelationV2 penstock, [id#1, shop#2]"
FILES = "Relation [shop#9, city#10] csv"


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (f"Project [id#1]\n+- Filter (id#1 > 3)\n   +- {STREAM}", 0),
        (f"Aggregate [shop#2], [shop#2, count(1) AS n#3]\n+- {STREAM}", 1),
        (f"Aggregate [shop#9], [count(1)]\n+- {FILES}", 0),
        (f"Project [id#1]\n+- Deduplicate [id#1]\n   +- EventTimeWatermark at#4, 1 hours\n      +- {STREAM}", 1),
        (f"Join Inner, (shop#2 = shop#9)\n:- {STREAM}\n+- {FILES}", 0),
        (f"Join Inner, (shop#2 = shop#9)\n:- {STREAM}\n+- SubqueryAlias b\n   +- {STREAM}", 1),
        (f"Join Inner\n:- Aggregate [shop#2]\n:  +- {STREAM}\n+- Aggregate [shop#2]\n   +- {STREAM}", 3),
        (f"Union false, false\n:- {STREAM}\n+- {STREAM}", 0),
        (f"Project [id#1]\n+- Window [row_number()]\n   +- {STREAM}", 1),
        (f"TransformWithStateInPandas f(), [shop#2]\n+- {STREAM}", 1),
        (f"FlatMapGroupsInPandasWithState f(), [shop#2]\n+- {STREAM}", 1),
        (f"Aggregate [n#1]\n+- Aggregate [shop#2]\n   +- {STREAM}", 2),
        ("", 0),
        (
            f"WithCTE\n:- CTERelationDef 0, false\n:  +- {STREAM}\n+- Aggregate [shop#2]\n   +- CTERelationRef 0, true",
            1,
        ),
        (f"Join LeftOuter, (shop#2 = shop#9)\n:- {FILES}\n+- {STREAM}", 1),
        (f"Join LeftOuter, (shop#2 = shop#9)\n:- {STREAM}\n+- {FILES}", 0),
        (f"Join LeftAnti, (shop#2 = shop#9)\n:- {FILES}\n+- {STREAM}", 1),
        (f"Join RightOuter, (shop#2 = shop#9)\n:- {STREAM}\n+- {FILES}", 1),
        (f"Join RightOuter, (shop#2 = shop#9)\n:- {FILES}\n+- {STREAM}", 0),
        (f"Join FullOuter, (shop#2 = shop#9)\n:- {STREAM}\n+- {FILES}", 1),
        (f"Offset 3\n+- {STREAM}", 1),
    ],
)
def test_operators_that_keep_state_of_streaming_rows(plan: str, count: int) -> None:
    assert len(find_state(plan)) == count


TIMES = "(at#4-T600000ms >= seen#5-T600000ms)"
MARKED = f"SubqueryAlias {{}}\n{{}}   +- EventTimeWatermark at#4, 10 minutes\n{{}}      +- {STREAM}"
BARE = f"SubqueryAlias {{}}\n{{}}   +- {STREAM}"


def join(kind: str, condition: str, left: str, right: str) -> str:
    return (
        f"Join {kind}, ({condition})\n"
        f":- {left.format('orders', ':  ', ':  ')}\n"
        f"+- {right.format('spark_catalog.payments', '   ', '   ')}"
    )


@pytest.mark.parametrize(
    ("plan", "without"),
    [
        (join("Inner", f"(id#1 = id#9) AND {TIMES}", MARKED, MARKED), None),
        (join("Inner", "(id#1 = id#9)", BARE, BARE), ("orders", "payments")),
        (join("Inner", "(id#1 = id#9)", MARKED, BARE), ("payments",)),
        (join("LeftOuter", "(id#1 = id#9)", BARE, MARKED), ("orders",)),
        (join("Inner", "(id#1 = id#9) AND (at#4-T600000ms > at#6)", MARKED, MARKED), ()),
        (f"Join Inner, (shop#2 = shop#9)\n:- {STREAM}\n+- {FILES}", None),
        (f"Join Inner, {TIMES}\n:- CTERelationRef 0, true\n+- CTERelationRef 1, true", None),
    ],
)
def test_joins_of_streams_that_never_forget(plan: str, without: tuple[str, ...] | None) -> None:
    assert [each.without for each in find_endless_joins(plan)] == ([] if without is None else [without])


def test_an_endless_join_is_told_with_the_way_out() -> None:
    (outer,) = find_endless_joins(join("LeftOuter", "(id#1 = id#9)", BARE, MARKED))
    assert "orders has no watermark: Spark refuses such an outer join. Give both a watermark" in explain_join(outer)
    (inner,) = find_endless_joins(join("Inner", "(id#1 = id#9)", BARE, BARE))
    assert "orders and payments have no watermark: Spark keeps all their rows for ever" in explain_join(inner)
    (timeless,) = find_endless_joins(join("Inner", "(id#1 = id#9)", MARKED, MARKED))
    assert "its condition does not compare their times" in explain_join(timeless)
