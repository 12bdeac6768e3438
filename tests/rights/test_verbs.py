"""Every verb of Penstock's own request, asked by everybody: refused where the model says, and nowhere else."""

import struct

from penstock.protocols.kafka.verbs import table
from tests.doors.verbs import frame_of

from .brokers import log_in
from .conftest import House
from .model import QUEUE_VERBS, VERBS, Model
from .rules import SUPER, all_rules, principals

HERE = "127.0.0.1"
CLUSTER_AUTHORIZATION_FAILED = 31
OF_A_TOPIC_OR_GROUP = (29, 30)
NO_QUEUE = b'{"queue": "books:readers"}'
NO_SETTING = b'{"queue": "books:readers", "settings": {"no-such-setting": "1"}}'


def test_every_verb_is_in_the_model() -> None:
    assert set(table.VERBS) == {*VERBS, *QUEUE_VERBS}


def test_every_verb_for_everybody(house: House) -> None:
    """Without what it needs to know, so that nothing is done."""
    model, wrong = Model(all_rules(), [SUPER]), []
    for user in principals():
        with log_in(house.addresses.kafka, user) as wire:
            for verb, need in VERBS.items():
                wire.send_frame(frame_of(verb, b"{}"))
                (code,) = struct.unpack_from(">h", wire.receive_bytes(), 1)
                if (code == CLUSTER_AUTHORIZATION_FAILED) is model.may(user, HERE, need):
                    wrong.append((user, verb, code))
    assert not wrong, wrong[:20]


def test_every_verb_about_queues_for_everybody(house: House) -> None:
    """Of a topic that is there and no queue, so that nothing is done either."""
    model, wrong = Model(all_rules(), [SUPER]), []
    for user in principals():
        with log_in(house.addresses.kafka, user) as wire:
            for verb, needs in QUEUE_VERBS.items():
                document = NO_SETTING if verb in ("queue.create", "queue.alter") else NO_QUEUE
                wire.send_frame(frame_of(verb, b"{}" if verb == "queue.list" else document))
                (code,) = struct.unpack_from(">h", wire.receive_bytes(), 1)
                if (code in OF_A_TOPIC_OR_GROUP) is all(model.may(user, HERE, need) for need in needs):
                    wrong.append((user, verb, code))
    assert not wrong, wrong[:20]
