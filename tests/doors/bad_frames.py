"""Frames no client would send: valid requests of every API, damaged from a seed, and plain noise."""

import random
import struct
from collections.abc import Iterator

from penstock.protocols.kafka.session import APIS

from .kafka import batch_of, fetch_values, make, produce_values
from .kio_values import entity_of, random_entity, request_frame

_FORGED = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\x00\x00\x00\x00",
    b"\x00",
    b"\x80\x80\x80\x80\x01",
    b"\x00\xff\xff\xff",
)
_LARGEST_SEED = 20_000


def good_requests(rng: random.Random, each: int = 4) -> list[bytes]:
    """Frames of every API and version, most with random values, some with values that find something."""
    frames = []
    for api in APIS:
        for version in range(api.oldest, api.newest + 1):
            kind = entity_of(api.name, version, "request")
            made = [request_frame(random_entity(rng, kind), rng.getrandbits(31)) for _ in range(each)]
            frames += [frame for frame in made if len(frame) <= _LARGEST_SEED]
            values = None
            if api.name == "produce" and version < 13:
                values = produce_values(batch_of(b"x" * 30, b"y"), acks=rng.choice((-1, 0, 1)))
            elif api.name == "fetch" and version < 13:
                values = fetch_values({"t": {0: 0, 1: 0}}, max_wait=rng.choice((0, 10, 10_000)), session=(0, 0))
            elif api.name == "list_offsets":
                asked = [{"partition_index": 0, "timestamp": time} for time in (-1, -2, -3, 0, 5)]
                values = {"topics": [{"name": "t", "partitions": asked}]}
            elif api.name == "offset_for_leader_epoch":
                asked = [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]
                values = {"topics": [{"topic": "t", "partitions": asked}]}
            elif api.name == "metadata":
                values = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
            if values is not None:
                frames.append(request_frame(make(api.name, version, values), rng.getrandbits(31)))
    return frames


def damage(rng: random.Random, frame: bytes, others: list[bytes]) -> bytes:
    """One frame made worse in one to four places."""
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(9)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            forged = rng.choice(_FORGED)
            data[at : at + len(forged)] = forged
        elif kind == 4:
            data[at:at] = rng.choice(_FORGED)
        elif kind == 5:
            del data[at : at + rng.choice((1, 2, 4, 8))]
        elif kind == 6:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 20)))
        elif kind == 7 and len(data) >= 4:
            struct.pack_into(">hh", data, 0, rng.randint(-2, 95), rng.randint(-2, 20))
        else:
            other = rng.choice(others)
            data[at:] = other[rng.randrange(len(other)) :]
    return bytes(data)


def bad_frames(seed: int) -> Iterator[bytes]:
    """Frames without end."""
    rng = random.Random(seed)
    seeds = good_requests(rng)
    while True:
        kind = rng.random()
        if kind < 0.1:
            yield rng.choice(seeds)
        elif kind < 0.9:
            yield damage(rng, rng.choice(seeds), seeds)
        elif kind < 0.95:
            api = rng.choice(APIS)
            head = struct.pack(">hhih", api.key, rng.randint(api.oldest, api.newest), 1, -1)
            yield head + rng.randbytes(rng.choice((0, 1, 10, 100)))
        else:
            yield rng.randbytes(rng.choice((0, 1, 7, 8, 9, 30, 300)))
