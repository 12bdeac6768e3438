"""The mechanisms of SCRAM by Kafka's numbers."""

from typing import Final

from penstock.security.scram import Mechanism

NUMBERS: Final = {Mechanism.SHA_256: 1, Mechanism.SHA_512: 2}
MECHANISMS: Final = {number: mechanism for mechanism, number in NUMBERS.items()}
