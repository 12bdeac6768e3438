"""The cluster's secret as the metadata store knows it: a verifier of it, and a proof in the record of each broker.

A broker with another secret would be refused by all others at every connection, and be given partitions all the same.
So the first broker leaves a salted verifier in the store, by compare-and-swap, and who does not fit it does not start.
And each broker's record says by an HMAC that it was written by one who knows the secret, for this cluster, start and
addresses; else whoever reads it takes it for a stranger's (`Image.strangers`). Both are made of a key that is dear to
guess (`protocols/internal/identity.py`), and do not tell the secret.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord
from penstock.errors import StartupError, WrongSettings
from penstock.ports.clock import Clock
from penstock.ports.metadata import Entry, MetadataConflict, MetadataStore
from penstock.ports.randomness import Randomness

ACCEPT_NEW = "--set cluster.accept_new_secret=true"
_VERSION = 1
_ENDPOINTS_VERSION = 2  # of what an HMAC is made of; 1 has no endpoints, and earlier releases know no other
_SALT_BITS = 256
_RETRY_S = 0.25


class ClusterSecret:
    """Args:
    key: made of the secret; not what brokers prove themselves to each other by.
    """

    def __init__(self, key: bytes) -> None:
        self._verifier_key = _derive(key, b"verifier")
        self._record_key = _derive(key, b"broker record")

    def __repr__(self) -> str:
        return "ClusterSecret()"

    def make_verifier(self, randomness: Randomness) -> bytes:
        """What is kept under `secret`."""
        salt = randomness.getrandbits(_SALT_BITS).to_bytes(_SALT_BITS // 8, "big")
        return orjson.dumps({"version": _VERSION, "salt": salt.hex(), "verifier": self._verify(salt)})

    def fits(self, stored: bytes) -> bool:
        """Whether a verifier was made of this secret; one of a format that is not known here never fits."""
        fields = orjson.loads(stored)
        if fields["version"] != _VERSION:
            return False
        made = self._verify(bytes.fromhex(fields["salt"]))
        return hmac.compare_digest(made.encode(), fields["verifier"].encode())

    def prove(self, cluster_id: str, broker: BrokerRecord) -> str:
        """What the record of a broker of this cluster has under `proof`."""
        return self._sign([_VERSION, *_addressed(cluster_id, broker)])

    def prove_endpoints(self, cluster_id: str, broker: BrokerRecord) -> str:
        """What it has under `endpoints_proof`."""
        endpoints = [[name, *broker.endpoints[name]] for name in sorted(broker.endpoints)]
        return self._sign([_ENDPOINTS_VERSION, *_addressed(cluster_id, broker), endpoints])

    def proves(self, cluster_id: str, broker: BrokerRecord) -> bool:
        """Whether the record of a broker was written by one who knows the secret; its endpoints too, if it has any."""
        if not hmac.compare_digest(self.prove(cluster_id, broker).encode(), broker.proof.encode()):
            return False
        if not broker.endpoints:
            return True
        return hmac.compare_digest(self.prove_endpoints(cluster_id, broker).encode(), broker.endpoints_proof.encode())

    def _sign(self, said: list[object]) -> str:
        return f"{said[0]}:{hmac.digest(self._record_key, orjson.dumps(said), hashlib.sha256).hex()}"

    def _verify(self, salt: bytes) -> str:
        return hmac.digest(self._verifier_key, salt, hashlib.sha256).hex()


def _addressed(cluster_id: str, broker: BrokerRecord) -> list[object]:
    said: list[object] = [cluster_id, broker.broker_id, broker.incarnation]
    return [*said, broker.host, broker.port, broker.internal_host, broker.internal_port]


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"penstock " + purpose, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Whether this broker belongs to the cluster of its store; asked before it changes anything there.

    Args:
        secret: of this broker; None: it goes by certificates alone.
        recognises: whether a broker takes this one for one of its cluster; None if that cannot be told now.
        accept_new: an operator's word that the cluster's secret is another one from now on.
        patience_s: who is registered for longer lives: leases of the dead have ended.
    """

    secret: ClusterSecret | None
    store: MetadataStore
    store_name: str
    node_id: int
    clock: Clock
    randomness: Randomness
    recognises: Callable[[BrokerRecord], Awaitable[bool | None]]
    accept_new: bool = False
    patience_s: float = 6.0

    async def run(self) -> None:
        """Raises `StartupError` with the way out, `WrongSettings` if another try is of no use, MetadataUnavailable."""
        while True:
            entry = await self.store.get(keys.SECRET)
            if self._belongs(entry):
                return
            if self.accept_new:
                await self._be_alone()
            elif entry is None and await self.store.get(keys.FEATURES) is None:
                await self._introduce()
            else:
                raise self._unfit(entry)
            try:
                await self._replace(entry)
            except MetadataConflict:
                continue  # another broker was quicker: this one has to fit what that one made
            return

    def _belongs(self, entry: Entry | None) -> bool:
        if self.secret is None or entry is None:
            return self.secret is None and entry is None
        return self.secret.fits(entry.value)

    async def _replace(self, entry: Entry | None) -> None:
        expect = {keys.SECRET: 0 if entry is None else entry.revision}
        if self.secret is None:
            await self.store.transact(expect=expect, delete=[keys.SECRET])
        else:
            await self.store.transact(expect=expect, put={keys.SECRET: self.secret.make_verifier(self.randomness)})

    def _unfit(self, entry: Entry | None) -> WrongSettings:
        if self.secret is None:
            what = "prove themselves by a secret, and this one has none; give it theirs (--cluster-secret-file FILE)"
        elif entry is None:
            what = "prove themselves by certificates alone, and this one has a secret; take it from it"
        else:
            what = "have another cluster secret than this one; give it theirs (--cluster-secret-file FILE)"
        return self._wrong(what)

    def _wrong(self, what: str) -> WrongSettings:
        return WrongSettings(
            f"the brokers of the cluster in {self.store_name} {what}. To change that for the cluster, stop all "
            f"brokers, and start each of them as it shall be with {ACCEPT_NEW}"
        )

    async def _be_alone(self) -> None:
        """One that was killed is registered until its lease ends."""
        until = self.clock.monotonic() + self.patience_s
        while others := await self._others():
            if self.clock.monotonic() >= until:
                raise WrongSettings(
                    f"broker {others[0].broker_id} is registered, with the secret that is to be replaced: stop all "
                    f"brokers, then start each of them with the new one and {ACCEPT_NEW}"
                )
            await asyncio.sleep(_RETRY_S)

    async def _introduce(self) -> None:
        """Where no verifier is: brokers of an earlier release may be there, and they know who is of their cluster.

        Most of them decide. Without their word nothing is made: a verifier of a wrong secret would lock them all out.
        """
        until = self.clock.monotonic() + self.patience_s
        while others := await self._others():
            is_last = self.clock.monotonic() >= until
            words = await asyncio.gather(*(self.recognises(broker) for broker in others))
            known, refused, silent = (words.count(word) for word in (True, False, None))
            if abs(known - refused) > (0 if is_last else silent):  # those that are silent could not turn it
                if known > refused:
                    return
                raise self._wrong("refuse this one, which has another cluster secret or certificate; give it theirs")
            if is_last:
                raise self._undecided(others, words)
            await asyncio.sleep(_RETRY_S)

    def _undecided(self, others: list[BrokerRecord], words: list[bool | None]) -> StartupError:
        said = {True: "takes it for one", False: "refuses it", None: "cannot be asked"}
        told = "; ".join(
            f"broker {broker.broker_id} at {broker.internal_host}:{broker.internal_port} {said[word]}"
            for broker, word in zip(others, words, strict=True)
        )
        return StartupError(
            f"whether this broker is of the cluster in {self.store_name} is for most of those that are registered "
            f"there to say, and they do not: {told}. Let it reach them, or stop those that are not of the cluster, "
            "and start it again"
        )

    async def _others(self) -> list[BrokerRecord]:
        entries = (await self.store.snapshot(keys.BROKERS)).entries
        found = [BrokerRecord.decode(entry.value, entry.revision) for entry in entries]
        return [broker for broker in found if broker.broker_id != self.node_id]
