"""Acknowledgements of share consumers: what each type says, what is refused, and how they are applied.

Of one partition everything is applied or nothing. Types: 0 there is no such record, 1 accepted, 2 released, 3 rejected,
4 kept for longer, which since version 2 a request may say that it has.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from penstock.engine.acting.acting import Acting
from penstock.engine.groups.group_config import RENEW
from penstock.engine.queues.verdicts import Change, Holder, Verdict, VerdictKind
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import share_places
from penstock.protocols.kafka.share_codec import AckBatch, Acks
from penstock.protocols.kafka.share_places import Refusal
from penstock.protocols.kafka.share_sessions import Membership, Place

_VERDICTS: Final = tuple(
    map(Verdict, (VerdictKind.GONE, VerdictKind.ACK, VerdictKind.RELEASE, VerdictKind.REJECT, VerdictKind.RENEW))
)
_RENEW: Final = 4
_MOST_TOLD: Final = 20_000
"""Of one partition, one by one, in one request: twice what a consumer may be working on. 40 ms, if no two are alike."""
_AT_ONCE: Final = 200
"""Acknowledgements, before others have their turn of the loop: some milliseconds, if no two are alike."""
Settled = Mapping[Place, Refusal | None]
"""What has become of the acknowledgements of each partition; None if all of them were applied."""


def gather_acks(listed: Iterable[tuple[Place, Acks]]) -> dict[Place, list[AckBatch]]:
    """The acknowledgements of each partition that has any; one may be listed more than once."""
    found: dict[Place, list[AckBatch]] = {}
    for place, batches in listed:
        if batches:
            found.setdefault(place, []).extend(batches)
    return found


def changes_of(batches: Iterable[AckBatch], end: int, *, renews: bool) -> list[Change]:
    """What the acknowledgements of one partition come to.

    Args:
        end: nobody can have had anything there or beyond.
        renews: whether type 4 is allowed.

    Raises:
        PenstockError: INVALID_REQUEST.
    """
    changes: list[Change] = []
    most = _RENEW if renews else _RENEW - 1
    following = told = 0
    for first, last, types in batches:
        count = last - first + 1
        if not following <= first <= last or last >= end:
            raise _refuse(f"offsets {first} to {last}, where {following} to {end - 1} can be acknowledged")
        told += len(types)
        if told > _MOST_TOLD:
            raise _refuse(f"{told} acknowledgements and more, where {_MOST_TOLD} can be told at once")
        if len(types) != 1 and len(types) != count:
            raise _refuse(f"{len(types)} acknowledgements for {count} offsets, {first} to {last}")
        if max(types) > most:
            raise _refuse(f"an acknowledgement of type {max(types)}, where 0 to {most} are known")
        following = last + 1
        if len(types) == 1:
            _add(changes, first, last, types[0])
            continue
        for kind, alike in groupby(types):
            until = first + sum(1 for _ in alike) - 1
            _add(changes, first, until, kind)
            first = until + 1
    return changes


async def settle(
    acting: Acting, membership: Membership, acks: Mapping[Place, Sequence[AckBatch]], *, renews: bool
) -> Settled:
    """Apply acknowledgements, and return when what was applied is durable."""
    tasks, work = [], 0
    for place, batches in acks.items():
        tasks.append(asyncio.create_task(_settle_one(acting, membership, place, batches, renews)))
        work += sum(len(types) for _, _, types in batches)
        if work > _AT_ONCE:
            work = 0
            await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    settled: dict[Place, Refusal | None] = {}
    for place, result in zip(acks, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        settled[place] = result
    return settled


async def _settle_one(
    acting: Acting, membership: Membership, place: Place, batches: Sequence[AckBatch], renews: bool
) -> Refusal | None:
    try:
        partition = share_places.find(acting, place)
        changes = changes_of(batches, partition.high_watermark, renews=renews)
        if renews and not acting.groups.config(membership.group).may_renew:
            _check_renews_nothing(changes, membership.group)
        await acting.queues.settle(partition, membership.group, Holder(membership.member), changes)
    except (PenstockError, OSError) as error:
        return share_places.refusal(acting, place, error)
    return None


def _add(changes: list[Change], first: int, last: int, kind: int) -> None:
    verdict = _VERDICTS[kind]
    if changes and changes[-1].last + 1 == first and changes[-1].verdict is verdict:
        changes[-1] = changes[-1]._replace(last=last)
    else:
        changes.append(Change(first, last, verdict))


def _check_renews_nothing(changes: Iterable[Change], group: str) -> None:
    if any(change.verdict.kind is VerdictKind.RENEW for change in changes):
        raise PenstockError(
            Code.STALE_RECEIPT,
            f"group {group!r} keeps no record for longer",
            help=f"acknowledge it in time, or set {RENEW} for the group",
        )


def _refuse(what: str) -> PenstockError:
    return PenstockError(Code.INVALID_REQUEST, what)
