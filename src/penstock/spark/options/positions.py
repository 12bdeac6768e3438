"""Where a read starts and ends in each partition, as the options put it, before a broker is asked.

Three options name a start, and three an end: a time for all partitions goes before a time for each, and that before
offsets, as in Spark's connector. An option that another goes before is not even looked at.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from penstock.spark.errors import OptionError

TopicPartition = tuple[str, int]
EARLIEST: Final = -2
LATEST: Final = -1

_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1
_MOST_NAMED = 5  # partitions in one message
_STRATEGY = "startingOffsetsByTimestampStrategy"


@dataclass(frozen=True, slots=True)
class Positions:
    """One end of what is read.

    Attributes:
        option: the option that says so, for messages.
        everywhere: `EARLIEST`, `LATEST` or, `by_time`, milliseconds, for every partition; None: see `each`.
        each: an offset, `EARLIEST`, `LATEST` or, `by_time`, milliseconds, for each partition.
        no_match: what it means that a partition has no record at or after the time.
    """

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_time: bool = False
    no_match: Literal["error", "latest"] = "latest"

    def questions(
        self, partitions: Iterable[TopicPartition], *, partial: bool = False
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """What is known already and what a broker must be asked.

        Args:
            partitions: all that are read.
            partial: only some of them are asked for now, so the option may name others.

        Returns:
            Offsets, and timestamps to list offsets for: `EARLIEST`, `LATEST` or milliseconds.

        Raises:
            OptionError: the option names other partitions than those that are read.
        """
        if self.everywhere is not None:
            return {}, dict.fromkeys(partitions, self.everywhere)
        wanted = set(partitions)
        self._check_same(wanted, partial=partial)
        given = {key: value for key, value in self.each.items() if key in wanted}
        fixed = {} if self.by_time else {key: offset for key, offset in given.items() if offset >= 0}
        return fixed, {key: asked for key, asked in given.items() if key not in fixed}

    def settle(self, key: TopicPartition, asked_ms: int, answer: int, latest: int) -> int:
        """The offset a broker's `answer` to one of the `questions` means; `latest` is the partition's end.

        Raises:
            OptionError: no record is that late, and the read must start there.
        """
        if answer >= 0:
            return answer
        if self.no_match == "latest":
            return latest
        raise OptionError(
            f"{self.option}: partition {_text(key)} has no record at or after {asked_ms} ms; set an earlier time, or "
            f"{_STRATEGY}=latest to start at its end"
        )

    def _check_same(self, wanted: set[TopicPartition], *, partial: bool) -> None:
        missing, unknown = wanted - self.each.keys(), self.each.keys() - wanted
        if missing:
            other = "a time" if self.by_time else "an offset (-2 is the earliest, -1 the latest)"
            raise OptionError(
                f"{self.option} does not name {_list(missing)}: give {other} for every partition that is read"
            )
        if unknown and not partial:
            raise OptionError(
                f"{self.option} names {_list(unknown)}, which this query does not read: take it out, or look whether "
                "the topic exists and is subscribed to"
            )


def parse_starting(options: Mapping[str, str], *, streaming: bool) -> Positions:
    """Where to start; names of `options` are in lower case.

    Raises:
        OptionError: a value cannot be read, or a batch read is to start at the end.
    """
    strategy = options.get(_STRATEGY.lower(), "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"{_STRATEGY} = {strategy!r}: it is error or latest")
    no_match = cast(Literal["error", "latest"], strategy)
    given = _parse(options, "starting", LATEST if streaming else EARLIEST, no_match)
    if not streaming and not given.by_time:
        _refuse(given, LATEST, "a batch read cannot start at the latest offset; use earliest, an offset, or a time")
    return given


def parse_ending(options: Mapping[str, str]) -> Positions:
    """Where a batch read ends; names of `options` are in lower case.

    Raises:
        OptionError: a value cannot be read, or it is to end at the beginning.
    """
    given = _parse(options, "ending", LATEST, "latest")
    if not given.by_time:
        _refuse(given, EARLIEST, "a read cannot end at the earliest offset; use latest, an offset, or a time")
    return given


def check_order(starting: Positions, ending: Positions) -> None:
    """Refuse two maps of the same kind that name different partitions or end before they start."""
    if starting.by_time != ending.by_time or not starting.each or not ending.each:
        return
    if apart := starting.each.keys() ^ ending.each.keys():
        raise OptionError(
            f"{starting.option} and {ending.option} must name the same partitions; only one has {_list(apart)}"
        )
    for key, start in starting.each.items():
        if start > ending.each[key] >= 0:
            raise OptionError(
                f"{starting.option} of {_text(key)} is {start}, behind {ending.option}, {ending.each[key]}: swap them"
            )


def parse_map(option: str, text: str) -> dict[str, object]:
    """A JSON object by topic, as `assign` and the maps of offsets are. Raises `OptionError`."""
    try:
        parsed = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option} = {_cut(text)}: not the JSON it should be ({error}); {_example(option)}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"{option} = {_cut(text)}: not a JSON object; {_example(option)}")
    return parsed


def parse_partition(option: str, topic: str, number: object) -> int:
    """A partition's number in one of those maps. Raises `OptionError`."""
    value = _integer(number)
    if value is None or not 0 <= value <= _INT32_MAX:
        raise OptionError(f"{option}: {number!r} is not a partition of topic {topic!r}; {_example(option)}")
    return value


def _parse(options: Mapping[str, str], end: str, default: int, no_match: Literal["error", "latest"]) -> Positions:
    at, each_at, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if (text := options.get(at.lower())) is not None:
        moment = _integer(text.strip())
        if moment is None or not 0 <= moment <= _INT64_MAX:
            raise OptionError(f"{at} = {_cut(text)}: it is a time in milliseconds since 1970, such as 1735689600000")
        return Positions(at, everywhere=moment, by_time=True, no_match=no_match)
    if (text := options.get(each_at.lower())) is not None:
        return Positions(each_at, each=_parse_each(each_at, text, 0), by_time=True, no_match=no_match)
    text = options.get(offsets.lower(), "").strip()
    if offsets.lower() not in options:
        return Positions(offsets, everywhere=default)
    if text.lower() in ("earliest", "latest"):
        return Positions(offsets, everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise OptionError(f"{offsets} = {_cut(text)}: it is earliest, latest or a JSON object; {_example(offsets)}")
    return Positions(offsets, each=_parse_each(offsets, text, EARLIEST))


def _parse_each(option: str, text: str, least: int) -> dict[TopicPartition, int]:
    each: dict[TopicPartition, int] = {}
    for topic, partitions in parse_map(option, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: what topic {topic!r} has is not a JSON object; {_example(option)}")
        for number, given in partitions.items():
            key = (topic, parse_partition(option, topic, number))
            value = _integer(given)
            if value is None or not least <= value <= _INT64_MAX:
                what = "a time in milliseconds" if least == 0 else "an offset, -1 or -2"
                raise OptionError(f"{option} of {_text(key)} = {given!r}: it is {what}; {_example(option)}")
            if key in each:
                raise OptionError(f"{option} names {_text(key)} twice; leave one of them out")
            each[key] = value
    if not each:
        raise OptionError(f"{option} = {_cut(text)} names no partition; {_example(option)}")
    return each


def _refuse(given: Positions, position: int, reason: str) -> None:
    if given.everywhere == position:
        raise OptionError(f"{given.option} = {'latest' if position == LATEST else 'earliest'}: {reason}")
    for key, offset in given.each.items():
        if offset == position:
            raise OptionError(f"{given.option} of {_text(key)} = {position}: {reason}")


def _integer(value: object) -> int | None:
    """JSON has numbers as values and text as keys; Spark's connector takes either for both."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _example(option: str) -> str:
    value = "[0,1]" if option == "assign" else '{"0":1735689600000}' if "Timestamp" in option else '{"0":23,"1":-2}'
    if option.startswith("ending"):
        value = value.replace("-2", "-1")
    return f'an example is {{"orders":{value}}}'


def _list(keys: Iterable[TopicPartition]) -> str:
    names = [_text(key) for key in sorted(keys)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _text(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}"


def _cut(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")
