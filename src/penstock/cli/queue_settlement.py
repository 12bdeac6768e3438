"""What becomes of messages that were leased: receipts with a verdict, each asked of who leads its partition."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.cli import wire
from penstock.cli.failure import CommandError
from penstock.cli.queue_leaders import Leaders, Patience, is_passing
from penstock.cli.verbs import Fields

_AT_ONCE: Final = 100
_RETRIED: Final = frozenset({"not_leader", "not_available", "coordinator_loading"})
"""Errors of one receipt that another question may not meet."""


def settle(
    leaders: Leaders, verdict: str, receipts: Sequence[str], delay_ms: int | None = None, reason: str | None = None
) -> list[Fields]:
    """What became of each, in their order: see `failures`. Raises `CommandError` if the server refuses all of it."""
    more = {name: value for name, value in (("delay_ms", delay_ms), ("reason", reason)) if value is not None}
    asked = {receipt: {"receipt": receipt, "verdict": verdict, **more} for receipt in receipts}
    what = f"messages of queue {leaders.queue!r} cannot be settled"
    return _ask(leaders, what, "queue.settle", asked)


def extend(leaders: Leaders, receipts: Sequence[str], visibility_ms: int | None) -> list[Fields]:
    """The same for leases that shall last longer."""
    what = f"messages of queue {leaders.queue!r} cannot be kept"
    return _ask(leaders, what, "queue.extend", {each: each for each in receipts}, visibility_ms=visibility_ms)


def failures(results: Iterable[Fields]) -> list[Fields]:
    """Those of the results that say what is wrong: `error` is a code, `text` and `help` are for people."""
    return [row for row in results if row["error"] is not None]


def _ask(leaders: Leaders, what: str, verb: str, asked: Mapping[str, Any], **more: Any) -> list[Fields]:
    results = {receipt: _unread(leaders, receipt) for receipt in asked}
    left = [receipt for receipt, row in results.items() if row["error"] in _RETRIED]
    patience = Patience(leaders.server)
    while left:
        for at, some in _by_broker(leaders, left).items():
            for start in range(0, len(some), _AT_ONCE):
                part = some[start : start + _AT_ONCE]
                try:
                    told = leaders.ask_at(at, what, verb, receipts=[asked[each] for each in part], **more)
                except CommandError as error:
                    if not is_passing(error, at):
                        raise
                else:
                    results |= {row["receipt"]: row for row in told["results"]}
        left = [each for each in left if results[each]["error"] in _RETRIED]
        if left and not patience.wait():
            break
        leaders.forget()
    return list(results.values())


def _unread(leaders: Leaders, receipt: str) -> Fields:
    """What is to be said of a receipt that no server has seen."""
    from penstock.engine.queues.receipts import parse_receipt
    from penstock.errors import PenstockError

    try:
        number = parse_receipt(receipt).partition
    except PenstockError as error:
        return {"receipt": receipt, "error": str(error.code), "text": str(error), "help": error.help}
    if number not in leaders.partitions:
        text = f"receipt {receipt!r} is for partition {number}, which queue {leaders.queue!r} has not"
        return {"receipt": receipt, "error": "unknown_queue", "text": text, "help": "is it of another queue?"}
    text = f"receipt {receipt!r}: no broker leads partition {number} now"
    return {"receipt": receipt, "error": "not_available", "text": text, "help": "try again"}


def _by_broker(leaders: Leaders, receipts: Iterable[str]) -> dict[wire.Address | None, list[str]]:
    from penstock.engine.queues.receipts import parse_receipt

    numbers = {receipt: parse_receipt(receipt).partition for receipt in receipts}
    of_broker = leaders.by_broker(sorted(set(numbers.values())))
    return {at: [each for each, number in numbers.items() if number in led] for at, led in of_broker.items()}
