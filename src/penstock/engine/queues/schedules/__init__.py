"""Schedules of queues: a cron expression in a time zone, and the message that is published each time it fires.

Owns: when a schedule fires, that each planned time is published once whatever breaks, and what is kept of it. The
schedules of all queues of a topic live beside its partition 0 (docs/adr/0031-schedules.md). It never reads messages,
and knows nothing of leases.

cron.py        when an expression fires; zones.py  the time zones
schedule.py    what a schedule is, and what it may be
entries.py     what is kept, and how it is written
machine.py     the schedules of a topic: a pure state machine
firing.py      publishes what is due
schedules.py   the verbs: add, list, pause, resume, remove
"""
