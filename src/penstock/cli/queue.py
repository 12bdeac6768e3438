"""`penstock queue`: queues, and the messages in them."""

from typing import Final

import click

from penstock.cli.late_group import LateGroup

_SETTINGS, _VIEW, _RECEIPTS = "penstock.cli.queue_settings", "penstock.cli.queue_view", "penstock.cli.queue_receipts"
_RECEIVE, _REMOVAL, _DELAYED = "penstock.cli.queue_receive", "penstock.cli.queue_removal", "penstock.cli.queue_delayed"
COMMANDS: Final = {
    "create": (_SETTINGS, "make a queue, and its topic if there is none"),
    "list": (_VIEW, "list queues"),
    "describe": (_VIEW, "show queues in full: what waits, what is leased, settings"),
    "alter": (_SETTINGS, "change what a queue goes by"),
    "delete": (_REMOVAL, "delete queues, with their topics if you say so"),
    "send": ("penstock.cli.queue_send", "send messages"),
    "receive": (_RECEIVE, "lease messages and print them with their receipts"),
    "ack": (_RECEIPTS, "messages are done"),
    "nack": (_RECEIPTS, "messages have failed, for now or for good"),
    "extend": (_RECEIPTS, "keep messages for longer"),
    "release": (_RECEIPTS, "give messages back untouched"),
    "browse": (_RECEIVE, "look at messages without leasing them"),
    "delayed": (_DELAYED, "look at what is not due yet, cancel it, or deliver it now"),
    "where": (_VIEW, "find one message, and what is the matter with it"),
    "purge": (_REMOVAL, "empty a queue"),
    "schedule": ("penstock.cli.queue_schedule", "publish messages at times, by cron expressions"),
    "redrive": ("penstock.cli.queue_redrive", "bring dead letters back"),
}


@click.command(
    "queue",
    cls=LateGroup,
    table=COMMANDS,
    help="""Make queues, send messages, lease and settle them, look after what has failed. Queues need a Penstock.

    A message in a queue goes to one consumer, which leases it for a while and then says what became of it: done (ack),
    failed (nack), not touched (release). What nobody settles in time comes back, and after some failed attempts it
    becomes a dead letter. The queue of a topic is named after it; topic:group is one more queue of the same topic,
    which gets every message, too.""",
    epilog="""\b
A first queue:
  penstock queue create jobs
  penstock queue send jobs 'resize cat.png'
  penstock queue receive jobs --ack

\b
By hand, message by message:
  penstock queue receive jobs
  penstock queue ack jobs RECEIPT
  penstock queue nack jobs RECEIPT --delay 1m

\b
When something is wrong:
  penstock queue describe jobs --watch
  penstock queue browse jobs --state dying
  penstock queue where jobs order-4711""",
)
def command() -> None:
    pass
