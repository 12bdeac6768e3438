"""Who leads a partition: a pure step from one state to the next, by who is there.

Never unclean: only those may lead that hold everything acknowledged. In this order:
  isr    they hold it by definition;
  elr    they held it when too few stayed in sync to acknowledge more, so they still do (KIP-966);
  last   they held it too, but have started uncleanly since. Where records are synced before they are acknowledged,
         such a start loses none of them; only a disk may have been lost or replaced. The promise covers one disk less
         than acknowledging needs (min ISR), so among that many reports, or those of all holders, there is one complete
         log: the longest. Elsewhere a page cache is gone, and an operator decides, unless nobody else holds anything.

A state without a leader keeps its members, dead or not: whoever of them returns first may lead. While there is a
leader the dead leave, so that acknowledging does not wait for them.

Whoever starts uncleanly is remembered in `last` while nothing can be acknowledged without it: while nobody leads, or
too few are in sync. Deaths count before starts for that. `last` is over when enough are in sync, as `elr` is; until
then a leader must not move the high watermark. Forgetting one earlier loses records: of those in sync when the power
went, one that comes back with an empty disk would be alone in `last`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from penstock.cluster.image import End
from penstock.engine.partition_state import NOBODY, PartitionState


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about one partition besides its state."""

    live: Collection[int]
    """Brokers that are there and admitted."""
    min_isr: int
    """Not more than there are replicas."""
    leaving: Collection[int] = ()
    drained: Collection[int] = ()
    """Brokers that shall not lead while another one can."""
    synced: bool = True
    """Whether followers and leader sync records before they are acknowledged (flush=commit)."""
    ends: Mapping[int, End] = field(default_factory=dict)
    """Reports of members of `last`, of their present incarnations only."""
    waited: bool = False
    """Whether the members of `last` have had their time to come back."""
    preferred: bool = False
    """Whether the first replica shall lead if it can."""

    def is_staying(self, broker_id: int) -> bool:
        return broker_id in self.live and broker_id not in self.leaving

    def is_willing(self, broker_id: int) -> bool:
        return self.is_staying(broker_id) and broker_id not in self.drained


def next_state(state: PartitionState, rules: Rules) -> PartitionState:
    """The state by these rules; the same object if it is right as it is."""
    is_led = state.leader in rules.live and state.leader in state.isr
    return _tended(state, rules) if is_led else _elected(state, rules)


def admit(state: PartitionState, broker_id: int, clean: bool, min_isr: int = 1) -> PartitionState:
    """What a new start of a broker means, to be written before the broker is admitted."""
    after = state.led_by(NOBODY) if state.leader == broker_id else state
    if not clean and (broker_id in state.isr or broker_id in state.elr):
        after = after.without((broker_id,))
        if after.leader == NOBODY or len(after.isr) < min_isr:
            doubtful = {*after.last, broker_id}
            after = replace(after, last=tuple(replica for replica in after.replicas if replica in doubtful))
    return after


def admit_all(state: PartitionState, rules: Rules, starts: Mapping[int, bool]) -> PartitionState:
    """The next state, and what new starts of brokers mean then: each with whether it was clean.

    None of them is live by these rules.
    """
    after = next_state(state, rules)
    for broker_id, clean in starts.items():
        after = admit(after, broker_id, clean, rules.min_isr)
    return after


def _tended(state: PartitionState, rules: Rules) -> PartitionState:
    """Of a partition whose leader is there. Ends `elr` and `last` too, if the topic needs fewer than it did."""
    after = state
    isr = [member for member in state.isr if member in rules.live]
    if len(isr) < len(state.isr) or (len(isr) >= rules.min_isr and (state.elr or state.last)):
        after = state.with_isr(isr, rules.min_isr)
    absent = [member for member in after.target if member not in rules.live]
    if after.target and after.is_arrived(rules.min_isr, absent):
        arrived = after.arrived()
        heir = state.leader if state.leader in arrived.isr else _first(arrived.isr, arrived, rules)
        if heir is not None:
            # A new epoch in any case: who goes now removes its files, and may be asked to hold the partition again
            # before the leader has seen that it ever went.
            return arrived.led_by(heir)
    heir = None
    if state.leader in rules.leaving:
        heir = _first(after.isr, after, rules)
    elif state.leader in rules.drained:
        heir = next((member for member in after.replicas if member in after.isr and rules.is_willing(member)), None)
    elif rules.preferred and after.replicas[0] in after.isr and rules.is_willing(after.replicas[0]):
        heir = after.replicas[0]
    return after if heir is None or heir == state.leader else after.led_by(heir)


def _elected(state: PartitionState, rules: Rules) -> PartitionState:
    leader = _first(state.isr, state, rules)
    if leader is not None:
        isr = [member for member in state.isr if member in rules.live]
        return state.with_isr(isr, rules.min_isr).led_by(leader)
    leader = _first(state.elr, state, rules)
    if leader is None:
        leader = _longest(state, rules)
    if leader is not None:
        return state.with_isr((leader,), rules.min_isr).led_by(leader)
    return state if state.leader == NOBODY else state.led_by(NOBODY)


def _first(members: Collection[int], state: PartitionState, rules: Rules) -> int | None:
    """The most preferred of some members that is there to stay; a drained one if there is no other."""
    staying = [replica for replica in state.replicas if replica in members and rules.is_staying(replica)]
    return next((replica for replica in staying if rules.is_willing(replica)), staying[0] if staying else None)


def _longest(state: PartitionState, rules: Rules) -> int | None:
    """Who of `last` has the longest history, when enough have reported theirs."""
    if not rules.synced and len(state.replicas) > 1:
        return None
    reported = [
        member for member in state.replicas if member in state.last and member in rules.live and member in rules.ends
    ]
    holders = {*state.isr, *state.elr, *state.last}
    is_enough = len(reported) == len(holders) or (rules.waited and len(reported) >= rules.min_isr)
    able = [member for member in reported if rules.ends[member].is_usable]
    if not able or not is_enough:
        return None
    return max(able, key=lambda member: rules.ends[member].history)
