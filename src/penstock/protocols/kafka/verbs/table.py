"""All verbs, by their names."""

from collections.abc import Mapping
from typing import Final

from penstock.protocols.kafka.verbs import (
    api_keys,
    policy,
    queue_due,
    queue_messages,
    queues,
    roles,
    schedules,
    users,
)
from penstock.protocols.kafka.verbs.verb import Verb

VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (
        *(*users.VERBS, *roles.VERBS, *api_keys.VERBS, *policy.VERBS),
        *(*queues.VERBS, *queue_messages.VERBS, *queue_due.VERBS, *schedules.VERBS),
    )
}
