"""`penstock cluster`: see how a cluster does, move partitions, take brokers out and in."""

from typing import Final

import click

from penstock.cli.late_group import LateGroup

_STATUS, _MOVES, _BROKERS = "penstock.cli.cluster_status", "penstock.cli.cluster_moves", "penstock.cli.cluster_brokers"
COMMANDS: Final = {
    "status": (_STATUS, "one screen: brokers, health, what to do next"),
    "check": (_STATUS, "exit 0 if the cluster is healthy, 1 with the reasons if not"),
    "brokers": (_STATUS, "list brokers with what they hold and lead"),
    "topics": (_STATUS, "list topics with what is the matter with them"),
    "reassign": (_MOVES, "move partitions, see how far that is, take it back"),
    "balance": (_MOVES, "even out bytes, leaders or disks"),
    "elect": (_MOVES, "let preferred brokers lead"),
    "cordon": (_BROKERS, "give a broker no new replicas"),
    "uncordon": (_BROKERS, "let it have them again"),
    "drain": (_BROKERS, "have a broker lead nothing, before work on it"),
    "decommission": (_BROKERS, "empty a broker and forget it"),
    "replace": (_BROKERS, "give what a lost broker held to another one"),
    "config": (_BROKERS, "settings of brokers that act at once"),
    "restart": ("penstock.cli.cluster_restart", "restart one broker after the other"),
}


@click.command(
    "cluster",
    cls=LateGroup,
    table=COMMANDS,
    help="""Show a cluster's state, move partitions, add and remove brokers, through any of its brokers. A command that
    moves data shows its plan and asks first; the brokers go on with the move when the command has ended.""",
    epilog="""\b
Every day:
  penstock cluster status --watch
  penstock cluster check && echo healthy

\b
Work on a machine, then the next one:
  penstock cluster drain 2
  penstock cluster drain 2 --undo

\b
A broker joins, leaves, is lost:
  penstock cluster balance
  penstock cluster decommission 4
  penstock cluster replace 2 5""",
)
def command() -> None:
    pass
