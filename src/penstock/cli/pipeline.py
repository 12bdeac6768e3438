"""`penstock pipeline`: sources → steps → sinks on Spark, in the foreground or the background."""

from typing import Final

import click

from penstock.cli.late_group import LateGroup

_HERE, _BACKGROUND = "penstock.cli.pipeline_run", "penstock.cli.pipeline_driver"
COMMANDS: Final = {
    "new": (_HERE, "write a pipeline's file to begin with"),
    "check": (_HERE, "find what is wrong with a pipeline's file"),
    "run": (_HERE, "run a pipeline here, until Ctrl+C or once"),
    "graph": ("penstock.cli.pipeline_graph", "draw a pipeline, with its rates and lag"),
    "start": (_BACKGROUND, "run a pipeline in the background"),
    "list": (_BACKGROUND, "list pipelines and how they do"),
    "status": (_BACKGROUND, "show how a pipeline does"),
    "stop": (_BACKGROUND, "end a pipeline in the background"),
    "logs": (_BACKGROUND, "show what happened to a pipeline"),
    "backfill": ("penstock.cli.pipeline_backfill", "run older rows of a topic through a pipeline"),
    "reset": (_BACKGROUND, "make a pipeline begin anew"),
}


@click.command(
    "pipeline",
    cls=LateGroup,
    table=COMMANDS,
    help="""Run data pipelines on Spark: rows of topics and files go through SQL or Python steps into sinks, each
    micro-batch once.""",
    epilog="""\b
A first pipeline:
  penstock pipeline new revenue.yaml
  penstock pipeline check revenue.yaml
  penstock pipeline run revenue.yaml --once""",
)
def command() -> None:
    pass
