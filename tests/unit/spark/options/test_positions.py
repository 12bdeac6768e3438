"""Where reads start and end: what is asked of a broker, and what its answers mean."""

from typing import Any

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.options.positions import EARLIEST, LATEST, Positions, check_order, parse_ending, parse_starting

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
NOON = 1_735_732_800_000


def starting(streaming: bool = False, **options: Any) -> Positions:
    return parse_starting({name.lower(): value for name, value in options.items()}, streaming=streaming)


def ending(**options: Any) -> Positions:
    return parse_ending({name.lower(): value for name, value in options.items()})


def test_defaults() -> None:
    assert starting().questions([A0, B0]) == ({}, {A0: EARLIEST, B0: EARLIEST})
    assert starting(streaming=True).questions([A0]) == ({}, {A0: LATEST})
    assert ending().questions([A0]) == ({}, {A0: LATEST})


def test_words_in_any_case() -> None:
    assert starting(startingOffsets=" Earliest ", streaming=True).everywhere == EARLIEST
    assert starting(startingOffsets="LATEST", streaming=True).everywhere == LATEST
    assert ending(endingOffsets="Latest").everywhere == LATEST


def test_offsets_for_each_partition() -> None:
    given = starting(startingOffsets='{"a":{"0":23,"1":-2},"b":{"0":-1}}', streaming=True)
    assert given.questions([B0, A1, A0]) == ({A0: 23}, {A1: EARLIEST, B0: LATEST})


def test_offset_zero_and_numbers_as_text_are_offsets() -> None:
    assert starting(startingOffsets='{"a":{"0":0,"1":"9223372036854775807"}}').questions([A0, A1]) == (
        {A0: 0, A1: 2**63 - 1},
        {},
    )


def test_a_time_for_all_goes_before_times_for_each_and_those_before_offsets() -> None:
    offsets: dict[str, Any] = {"startingOffsets": "not looked at"}
    each: dict[str, Any] = {"startingOffsetsByTimestamp": f'{{"a":{{"0":{NOON}}}}}'}
    assert starting(**offsets, **each).questions([A0]) == ({}, {A0: NOON})
    both = starting(**offsets, startingOffsetsByTimestamp="nor this", startingTimestamp=" 7 ")
    assert both.questions([A0, B0]) == ({}, {A0: 7, B0: 7})
    assert ending(endingOffsets="x", endingOffsetsByTimestamp="x", endingTimestamp="7").questions([A0]) == ({}, {A0: 7})
    assert ending(endingOffsets="x", endingOffsetsByTimestamp='{"a":{"0":8}}').questions([A0]) == ({}, {A0: 8})


def test_time_zero_is_a_time() -> None:
    assert starting(startingOffsetsByTimestamp='{"a":{"0":0}}').questions([A0]) == ({}, {A0: 0})


# --- Partitions named and read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_every_partition_must_be_named_and_no_other(option: str) -> None:
    named: dict[str, Any] = {option: '{"a":{"0":5}}'}
    given = starting(**named)
    with pytest.raises(OptionError, match=f"{option} does not name a-1, b-0: give "):
        given.questions([A0, A1, B0])
    named = {option: '{"a":{"0":5,"1":5},"b":{"0":5}}'}
    given = starting(**named)
    with pytest.raises(OptionError, match=f"{option} names a-1, b-0, which this query does not read"):
        given.questions([A0])


def test_some_of_the_partitions_can_be_asked_about() -> None:
    given = starting(startingOffsets='{"a":{"0":5,"1":-2},"b":{"0":6}}')
    assert given.questions([A0, A1], partial=True) == ({A0: 5}, {A1: EARLIEST})
    with pytest.raises(OptionError, match="does not name c-0"):
        given.questions([("c", 0)], partial=True)


def test_a_long_list_is_cut() -> None:
    given = starting(startingOffsets='{"a":{"0":5}}')
    with pytest.raises(OptionError, match="does not name a-1, a-2, a-3, a-4, a-5 and 4 more:"):
        given.questions([("a", number) for number in range(10)])


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_offset() -> None:
    assert starting(startingTimestamp="5").settle(A0, 5, 0, 100) == 0


def test_a_start_behind_all_records_is_an_error_or_the_end() -> None:
    message = "startingTimestamp: partition a-0 has no record at or after 5 ms; set an earlier time, or startingOffsets"
    with pytest.raises(OptionError, match=message):
        starting(startingTimestamp="5").settle(A0, 5, -1, 100)
    ways: list[dict[str, Any]] = [{"startingTimestamp": "5"}, {"startingOffsetsByTimestamp": '{"a":{"0":5}}'}]
    for options in ways:
        lenient = starting(**options, startingOffsetsByTimestampStrategy=" Latest ")
        assert lenient.settle(A0, 5, -1, 100) == 100


def test_an_end_behind_all_records_is_the_end() -> None:
    given = {"startingOffsetsByTimestampStrategy": "error"}
    assert ending(endingTimestamp="5", **given).settle(A0, 5, -1, 100) == 100


# --- Refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets = latest: a batch read cannot start at the latest offset"),
        ({"startingOffsets": '{"a":{"0":1,"1":-1}}'}, "startingOffsets of a-1 = -1: a batch read cannot start at"),
        ({"startingOffsets": ""}, "startingOffsets = '': it is earliest, latest or a JSON object"),
        ({"startingOffsets": "newest"}, "startingOffsets = 'newest': it is earliest, latest or a JSON object"),
        ({"startingOffsets": "{"}, r'not the JSON it should be .*; an example is {"orders":{"0":23,"1":-2}}'),
        ({"startingOffsets": "{}"}, "names no partition"),
        ({"startingOffsets": '{"a":{}}'}, "names no partition"),
        ({"startingOffsets": '{"a":[0]}'}, "what topic 'a' has is not a JSON object"),
        ({"startingOffsets": '{"a":{"zero":1}}'}, "'zero' is not a partition of topic 'a'"),
        ({"startingOffsets": '{"a":{"-1":1}}'}, "'-1' is not a partition"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets of a-0 = -3: it is an offset, -1 or -2"),
        ({"startingOffsets": '{"a":{"0":9223372036854775808}}'}, "it is an offset"),
        ({"startingOffsets": '{"a":{"0":1.5}}'}, "= 1.5: it is an offset"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "= True: it is an offset"),
        ({"startingOffsets": '{"a":{"0":null}}'}, "= None: it is an offset"),
        ({"startingOffsets": '{"a":{"0":1,"0":2}}'}, "'0' is there twice"),
        ({"startingOffsets": '{"a":{"0":1,"00":2}}'}, "names a-0 twice"),
        ({"startingOffsets": '{"a":{"0":' + "1" * 5000 + "}}"}, r"startingOffsets = '.{100}\.\.\.': not the JSON"),
        ({"startingTimestamp": "-1"}, "startingTimestamp = '-1': it is a time in milliseconds since 1970, such as"),
        ({"startingTimestamp": "2024-01-01"}, "it is a time in milliseconds"),
        ({"startingTimestamp": ""}, "it is a time in milliseconds"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-2}}'}, "= -2: it is a time in milliseconds"),
        ({"startingOffsetsByTimestamp": "5"}, "not a JSON object"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "Strategy = 'earliest': it is error or latest"),
    ],
)
def test_starts_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        starting(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "earliest"}, "endingOffsets = earliest: a read cannot end at the earliest offset"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets of a-0 = -2: a read cannot end at the earliest"),
        ({"endingOffsets": '{"a":{"0":-3}}'}, r'an example is {"orders":{"0":23,"1":-1}}'),
        ({"endingTimestamp": "noon"}, "endingTimestamp = 'noon'"),
    ],
)
def test_ends_that_cannot_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ending(**options)


# --- Start and end together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Offsets", "OffsetsByTimestamp"])
def test_a_read_that_ends_before_it_starts(kind: str) -> None:
    named: dict[str, Any] = {f"starting{kind}": '{"a":{"0":5}}'}
    start = starting(**named)
    check_order(start, ending(**{f"ending{kind}": '{"a":{"0":5}}'}))
    with pytest.raises(OptionError, match=f"starting{kind} of a-0 is 5, behind ending{kind}, 4: swap them"):
        check_order(start, ending(**{f"ending{kind}": '{"a":{"0":4}}'}))
    with pytest.raises(OptionError, match=f"starting{kind} and ending{kind} must name the same .* only one has a-1"):
        check_order(start, ending(**{f"ending{kind}": '{"a":{"0":5,"1":5}}'}))


def test_what_cannot_be_compared_is_not() -> None:
    check_order(starting(startingOffsets='{"a":{"0":5}}'), ending(endingOffsets='{"a":{"0":-1}}'))
    check_order(starting(startingOffsets='{"a":{"0":5}}'), ending(endingOffsetsByTimestamp='{"a":{"0":1}}'))
    check_order(starting(startingOffsets='{"a":{"0":5}}'), ending())
    check_order(starting(), ending(endingOffsets='{"a":{"0":1}}'))
