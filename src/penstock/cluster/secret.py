"""The cluster's secret as the metadata store knows it: a verifier, which every broker is compared with before it joins.

A broker with another secret would be refused by all others at every connection, and be given partitions all the same.
So the first broker leaves a salted verifier in the store, by compare-and-swap, and who does not fit it does not start.
The verifier is made of a key that is dear to guess (`protocols/kafka/identity.py`), and does not tell the secret.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord
from penstock.errors import WrongSettings
from penstock.ports.clock import Clock
from penstock.ports.metadata import Entry, MetadataConflict, MetadataStore
from penstock.ports.randomness import Randomness

ACCEPT_NEW = "--set cluster.accept_new_secret=true"
_VERSION = 1
_SALT_BITS = 256
_RETRY_S = 0.25


class ClusterSecret:
    """Args:
    key: made of the secret; not what brokers prove themselves to each other by.
    """

    def __init__(self, key: bytes) -> None:
        self._verifier_key = _derive(key, b"verifier")

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
        return hmac.compare_digest(self._verify(bytes.fromhex(fields["salt"])), fields["verifier"])

    def _verify(self, salt: bytes) -> str:
        return hmac.digest(self._verifier_key, salt, hashlib.sha256).hex()


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"penstock " + purpose, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Whether this broker belongs to the cluster of its store; asked before it changes anything there.

    Args:
        secret: of this broker; None: it goes by certificates alone.
        recognises: whether a broker takes this one for one of its cluster; None if that cannot be told now.
        accept_new: an operator's word that the cluster's secret is another one from now on.
        patience_s: how long those that are registered, and cannot be asked, are waited for.
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
        """Raises `WrongSettings` with the way out, MetadataUnavailable."""
        while True:
            entry = await self.store.get(keys.SECRET)
            if self.secret is None:
                return self._without(entry)
            if entry is not None and self.secret.fits(entry.value):
                return None
            if entry is None:
                await self._introduce()
            elif not self.accept_new:
                raise self._wrong()
            elif others := await self._others():
                raise WrongSettings(
                    f"broker {others[0].broker_id} is registered, with the secret that is to be replaced: stop all "
                    f"brokers, then start each of them with the new secret and {ACCEPT_NEW}"
                )
            at = 0 if entry is None else entry.revision
            try:
                made = self.secret.make_verifier(self.randomness)
                await self.store.transact(expect={keys.SECRET: at}, put={keys.SECRET: made})
            except MetadataConflict:
                continue  # another broker was quicker: this one has to fit what that one made
            return None

    def _without(self, entry: Entry | None) -> None:
        if entry is not None:
            raise WrongSettings(
                f"the brokers of the cluster in {self.store_name} prove themselves by a secret, and this one has none; "
                "give it theirs (--cluster-secret-file FILE)"
            )

    def _wrong(self) -> WrongSettings:
        return WrongSettings(
            f"this broker's cluster secret is not that of the cluster in {self.store_name}; give it the secret the "
            "other brokers have (--cluster-secret-file FILE). To change the secret of the cluster, stop all brokers, "
            f"and start each of them with the new one and {ACCEPT_NEW}"
        )

    async def _introduce(self) -> None:
        """Where no verifier is: brokers of an earlier release may be there, and they know who is of their cluster."""
        until = self.clock.monotonic() + self.patience_s
        while others := await self._others():
            words = [await self.recognises(broker) for broker in others]
            if True in words:
                return
            if False in words:
                raise self._wrong()
            if self.clock.monotonic() >= until:
                return
            await asyncio.sleep(_RETRY_S)

    async def _others(self) -> list[BrokerRecord]:
        entries = (await self.store.snapshot(keys.BROKERS)).entries
        found = [BrokerRecord.decode(entry.value, entry.revision) for entry in entries]
        return [broker for broker in found if broker.broker_id != self.node_id]
