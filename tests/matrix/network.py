"""Which packets are dropped where: nft rules inside the machines' namespaces, replaced as a whole at each change."""

from collections.abc import Iterable
from typing import NamedTuple

from .namespaces import CLIENT, Namespaces, address, run

KAFKA_PORT, HTTP_PORT, INTERNAL_PORT = 9092, 8080, 9094
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380


class Drop(NamedTuple):
    """Packets that a machine does not let through.

    Attributes:
        machine: where the rule is.
        outgoing: whether it is about packets that leave the machine, or come in.
        match: nft's own words for which packets.
    """

    machine: int
    outgoing: bool
    match: str


class Network:
    """All reach all in the beginning, and after `heal`."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._drops: set[Drop] = set()

    def drop(self, drops: Iterable[Drop]) -> None:
        self._drops |= set(drops)
        self._apply()

    def heal(self) -> None:
        self._drops.clear()
        self._apply()

    def counted(self) -> int:
        """Packets dropped since the last change of rules, everywhere."""
        total = 0
        for machine in range(1, self._namespaces.machines + 1):
            listed = run([*self._namespaces.within(machine), "nft", "list", "table", "inet", "faults"])
            words = listed.split()
            total += sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")
        return total

    def _apply(self) -> None:
        for machine in range(1, self._namespaces.machines + 1):
            lines = ["table inet faults", "delete table inet faults", "table inet faults {"]
            for chain, hook, outgoing in (("incoming", "input", False), ("outgoing", "output", True)):
                lines.append(f"chain {chain} {{ type filter hook {hook} priority 0;")
                mine = sorted(drop.match for drop in self._drops if drop[:2] == (machine, outgoing))
                lines += [f"{match} counter drop" for match in mine]
                lines.append("}")
            lines.append("}")
            run([*self._namespaces.within(machine), "nft", "-f", "-"], "\n".join(lines) + "\n")


def one_way(source: int, target: int) -> list[Drop]:
    """Nothing of what one machine sends arrives at another."""
    return [Drop(target, False, f"ip saddr {address(source)}")]


def both_ways(first: int, second: int) -> list[Drop]:
    return [*one_way(first, second), *one_way(second, first)]


def cut_off(machine: int, others: Iterable[int]) -> list[Drop]:
    """No packet between one machine and others, etcd included."""
    return [drop for other in others for drop in both_ways(machine, other)]


def brokers_apart(first: int, second: int) -> list[Drop]:
    """The internal listeners of two brokers do not reach each other; everything else does."""
    return [
        Drop(machine, False, f"ip saddr {address(other)} tcp {end} {INTERNAL_PORT}")
        for machine, other in ((first, second), (second, first))
        for end in ("dport", "sport")
    ]


def fetches_lost(source: int, target: int) -> list[Drop]:
    """One way only, of what brokers say to each other: nothing `source` sends on internal connections arrives."""
    return [Drop(target, False, f"ip saddr {address(source)} tcp {end} {INTERNAL_PORT}") for end in ("dport", "sport")]


def cut_from_etcd(machine: int) -> list[Drop]:
    """What the machine's broker sends to any etcd member is lost; the members reach each other."""
    return [Drop(machine, True, f"tcp dport {ETCD_PORT}")]


def deaf_to_etcd(machine: int) -> list[Drop]:
    """What etcd answers does not arrive: requests are carried out, and nobody hears of it."""
    return [Drop(machine, False, f"tcp sport {ETCD_PORT}")]


def cut_from_clients(machine: int) -> list[Drop]:
    return [Drop(machine, False, f"ip saddr {address(CLIENT)} tcp dport {KAFKA_PORT}")]


def answers_lost(machine: int) -> list[Drop]:
    """Clients' requests arrive and are carried out, the answers are lost."""
    return [Drop(machine, True, f"ip daddr {address(CLIENT)} tcp sport {KAFKA_PORT}")]


def loss(machine: int, percent: int) -> list[Drop]:
    """A share of all packets that come in from other machines, at random."""
    return [Drop(machine, False, f'iifname "uplink" numgen random mod 100 < {percent}')]
