import pytest

from penstock.pipelines.run.plans import find_state

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
