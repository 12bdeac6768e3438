"""The other brokers of the cluster, each behind connections that are made when first needed."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.cluster.image import BrokerRecord
from penstock.cluster.replication.source import Source
from penstock.ports.clock import Clock
from penstock.ports.network import Network, TlsIdentity, Transport
from penstock.protocols.internal.broker_source import BrokerSource
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.peer import Peer, PeerGone

if TYPE_CHECKING:
    import ssl

_PROBE_S = 2.0


class _Known(NamedTuple):
    incarnation: int
    peer: Peer


class _Word(NamedTuple):
    broker: BrokerRecord
    refusal: str | None


class Peers:
    """Args:
    find: a broker that is there now, by its id.
    incarnation: which start of this broker it is.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        node_id: int,
        find: Callable[[int], BrokerRecord | None],
        incarnation: Callable[[], int],
        *,
        identity: Identity | None = None,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._node_id = node_id
        self._find = find
        self._incarnation = incarnation
        self._identity = identity
        self._tls = tls
        self._known: dict[int, _Known] = {}
        self._publishing: dict[int, _Known] = {}
        self._reading: dict[int, _Known] = {}
        self._ordering: dict[int, _Known] = {}
        self._words: dict[Peer, _Word] = {}
        """Of each that is open: why its broker or this one does not take the other for one of its cluster."""

    def to(self, broker_id: int) -> Peer | None:
        """The connection for requests now and then; None if there is no such broker."""
        return self._kept(self._known, broker_id)

    def to_publish(self, broker_id: int) -> Peer | None:
        """The same for batches, whose answers wait for other brokers: nothing else has to wait behind them."""
        return self._kept(self._publishing, broker_id)

    def to_read(self, broker_id: int) -> Peer | None:
        """The same for records: they may be many, and nothing else has to wait behind them."""
        return self._kept(self._reading, broker_id)

    def to_order(self, broker_id: int) -> Peer | None:
        """The same for what many partitions have to do, one by one."""
        return self._kept(self._ordering, broker_id)

    def _kept(self, kept: dict[int, _Known], broker_id: int) -> Peer | None:
        broker = self._find(broker_id)
        known = kept.get(broker_id)
        if known is not None and (broker is None or broker.incarnation != known.incarnation):
            known.peer.close()
            del kept[broker_id]
        if broker is None:
            return None
        if broker_id not in kept:
            kept[broker_id] = _Known(broker.incarnation, self._connect(broker))
        return kept[broker_id].peer

    def source(self, broker: BrokerRecord) -> Source:
        """Connections of its own, for following what a broker leads."""
        return BrokerSource(self._connect(broker), self._connect(broker), self._node_id, self._incarnation)

    def words(self) -> dict[int, str | None]:
        """Of each broker that is there and was asked: why it refuses this one or this one it; None if neither does.

        One that lets this broker in at any connection does not refuse it.
        """
        found: dict[int, str | None] = {}
        let_in = set()
        for peer, (asked, refusal) in self._words.items():
            broker_id, broker = asked.broker_id, self._find(asked.broker_id)
            if broker is None or broker.incarnation != asked.incarnation:
                continue
            found[broker_id] = refusal or found.get(broker_id)
            if refusal is None and peer.is_connected:
                let_in.add(broker_id)
        return {broker_id: None if broker_id in let_in else refusal for broker_id, refusal in found.items()}

    def _connect(self, broker: BrokerRecord) -> Peer:
        def judged(refusal: str | None) -> None:
            self._words[peer] = _Word(broker, refusal)

        peer = Peer(
            self._network,
            broker.internal_host,
            broker.internal_port,
            self._clock,
            identity=self._identity,
            tls=self._tls,
            client_id=f"broker-{self._node_id}",
            judged=judged,
            closed=lambda: self._words.pop(peer, None),
        )
        return peer

    async def recognises(self, broker: BrokerRecord) -> bool | None:
        """Whether a broker takes this one for one of its cluster; None if that cannot be told now."""
        peer = self._connect(broker)
        try:
            await peer.connect()
        except PeerGone as gone:
            return False if gone.stranger else None
        finally:
            peer.close()
        return True

    async def probe(self, host: str, port: int) -> bool:
        """Whether somebody listens there."""
        with suppress(OSError, TimeoutError):
            transport = await self._network.connect(host, port, _Silent(), timeout_s=_PROBE_S)
            transport.close()
            return True
        return False

    async def refuses(self, host: str, port: int) -> bool:
        """Whether the host says that nobody listens there; not, if it says nothing."""
        try:
            transport = await self._network.connect(host, port, _Silent(), timeout_s=_PROBE_S)
            transport.close()
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    def close(self) -> None:
        for kept in (self._known, self._publishing, self._reading, self._ordering):
            for known in kept.values():
                known.peer.close()


class _Silent:
    """Takes what comes and says nothing."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(1024))

    def connected(self, transport: Transport) -> None:
        return None

    def get_buffer(self) -> memoryview:
        return self._room

    def received(self, size: int) -> None:
        return None

    def drained(self) -> None:
        return None

    def disconnected(self) -> None:
        return None
