"""`penstock pipeline backfill`: older rows of a topic through a pipeline, beside it or without it."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import read_properties
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.moment import Moment
from penstock.cli.output import note, output_option, show
from penstock.cli.pipeline_home import home_option, open_home, read_spec, translated
from penstock.cli.pipeline_run import SPARK_LOG, follow, open_spark, stopping

if TYPE_CHECKING:
    from penstock.pipelines.backfill import Plan
    from penstock.pipelines.home import PipelineDirectory
    from penstock.pipelines.model import Spec


@click.command(
    "backfill",
    short_help="Run older rows of a topic through a pipeline.",
    help="""Run older rows of a pipeline's topic through its steps into its sinks, while the pipeline itself runs or is
    stopped.

    Rows that the pipeline reads itself (from where it began) and those of other backfills are left out: nothing is
    written twice, nothing between is forgotten. The offsets are fixed once: to continue a backfill that was
    interrupted, call it again with the same times. Times are those of the records.

    A pipeline with state (windows, joins, duplicates) cannot have a backfill: reset it, and start it with an earlier
    'from'.""",
    epilog="""\b
Examples:
  penstock pipeline backfill revenue.yaml --from 2026-11-15 --to 2026-11-16
  penstock pipeline backfill revenue.yaml --from 2026-11-15 --to 2026-11-16 --plan    how much it would be
  penstock pipeline backfill revenue.yaml --from 7d --again       all of it, for sinks that upsert""",
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--from", "from_ms", type=Moment(), required=True, help="The first moment: 2026-11-15, 90m or 7d (ago).")
@click.option("--to", "to_ms", type=Moment(), help="The moment before which it ends (default: now).")
@click.option("--again", is_flag=True, help="Also what was read before.")
@click.option("--plan", "planning", is_flag=True, help="Fix and show the offsets; run nothing.")
@click.option("--master", metavar="URL", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="A Spark setting; may be repeated.")
@home_option
@output_option
def backfill(
    file: str,
    from_ms: int,
    to_ms: int | None,
    again: bool,
    planning: bool,
    master: str,
    settings: tuple[str, ...],
    home: str | None,
    output: str,
) -> None:
    from penstock.pipelines.backfill import plan_backfill

    if to_ms is not None and to_ms <= from_ms:
        raise CommandError("--to must be later than --from", code=USAGE)
    with translated():
        spec = read_spec(Path(file))
        directory = open_home(home).claim(spec.name, file)
        plan = plan_backfill(spec, directory, from_ms=from_ms, to_ms=to_ms, again=again, reserve=not planning)
        if not planning and plan.done < len(plan.rounds):
            _work(spec, directory, plan, master=master, conf=read_properties(settings))
    facts = {
        "backfill": plan.name,
        "source": plan.source,
        "rows": plan.rows,
        "rounds": [{"start": start, "end": end} for start, end in plan.rounds],
    }
    show(facts, output, lambda: _print(spec.name, plan, planning=planning))


def _work(spec: "Spec", directory: "PipelineDirectory", plan: "Plan", *, master: str, conf: dict[str, str]) -> None:
    from penstock.cli.pipeline_view import open_view
    from penstock.pipelines.backfill import Backfill

    with open_view(f"{spec.name} backfill", once=True) as view, stopping() as stops:
        view.phase("starting Spark")
        with view.keep_apart(directory.path / SPARK_LOG), open_spark(master, spec, conf) as spark:
            stops.listen()
            work = Backfill(spec, directory, plan, spark, on_status=view.update)
            work.start()
            stops.is_starting = False
            follow(work, view, stops)
    if work.error is not None:
        raise work.error
    if stops.count:
        raise CommandError("stopped; asked for again with the same times, it goes on")


def _print(name: str, plan: "Plan", *, planning: bool) -> None:
    from penstock.pipelines.drawing.quantity import plural

    rows = plural(plan.rows, "row")
    if not plan.rows:
        note(f"{name}: nothing to fill in; the pipeline, or a backfill, has all of it")
    elif planning:
        click.echo(f"{name}: {rows} (by offsets) would be read; without --plan they are")
    else:
        click.echo(f"{name}: {rows} (by offsets) of {plan.source} filled in")


COMMANDS: Final = (backfill,)
