"""`penstock log dump`: batches, records and small files of a data directory, printed while they are read."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import print_fields, print_table, show

if TYPE_CHECKING:
    from penstock.ports.disk import Disk

Facts = dict[str, Any]
_TABLE_ROWS = 500
_BATCH_COLUMNS = (
    "partition",
    "base_offset",
    "last_offset",
    "count",
    "codec",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "leader_epoch",
    "max_timestamp",
    "flags",
    "size",
    "position",
    "crc",
    "problem",
)
_RECORD_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "flags")


def dump_file(disk: "Disk", path: str, output: str, select: "Selection") -> None:
    """A `.log`, a card or a small file, by its name."""
    from penstock.storage.checked_file import DamagedFile
    from penstock.storage.offline import description

    name = os.path.basename(path)
    try:
        if name.endswith((".log", ".cleaned")):
            stem = name.partition(".")[0]
            base = int(stem) if stem.isdigit() else _first_offset(disk, path)
            state = description.load_known_state(disk, os.path.dirname(path) or ".")
            batches = description.describe_batches(
                disk,
                path,
                base,
                from_offset=select.start,
                gaps_to=state.gaps_to if state is not None else None,
                records=select.records,
            )
            print_batches(({"partition": None, **batch} for batch in batches), output, select)
        elif name.endswith((".index", ".checkpoint")):
            card = description.describe_card(disk, path)
            show(card, output, lambda: _print_card(card))
        elif description.is_small_file(path):
            facts = description.describe_small_file(disk, path)
            show(facts, output, lambda: _print_facts(facts))
        else:
            raise CommandError(
                f"{path}: cannot tell what this is; *.log, *.cleaned, *.index, *.checkpoint, state, swap, snapshot, "
                "partition.meta, format, clean-shutdown, log-ends and meta/metadata.db can be dumped",
                code=USAGE,
            )
    except DamagedFile as error:
        raise CommandError(f"{error}; see 'penstock log verify'", code=FAILED) from None


class Selection:
    """Which offsets, how many of them, and whether records are wanted."""

    def __init__(self, start: int, until: int | None, count: int | None, records: bool) -> None:
        self.start = start
        self.until = until
        self.count = count
        self.records = records

    def batches(self, batches: Iterable[Facts]) -> Iterator[Facts]:
        chosen = (batch for batch in batches if self.until is None or batch["base_offset"] < self.until)
        return islice(chosen, self.count) if not self.records else iter(chosen)

    def recorded(self, batches: Iterable[Facts]) -> Iterator[Facts]:
        """Single records, as rows of their own, and the damage between them."""

        def rows() -> Iterator[Facts]:
            for batch in self.batches(batches):
                if batch["problem"]:
                    shown = ("partition", "base_offset", "last_offset", "position", "size", "problem")
                    yield {name: batch.get(name) for name in shown}
                for record in batch.get("records", ()):
                    if record["offset"] >= self.start and (self.until is None or record["offset"] < self.until):
                        about = {name: batch[name] for name in ("control", "marker", "producer_id", "producer_epoch")}
                        yield {"partition": batch["partition"], **record, **about}

        return islice(rows(), self.count)


def dump_partitions(disk: "Disk", partitions: Sequence[tuple[str, str]], output: str, select: Selection) -> None:
    """The batches or records of partitions, given as name and directory."""
    from penstock.storage.offline.description import describe_batches, load_known_state
    from penstock.storage.offline.segment_files import segment_names

    def batches() -> Iterator[Facts]:
        for name, directory in partitions:
            state = load_known_state(disk, directory)
            epochs, gaps_to = (state.epochs, state.gaps_to) if state is not None else (None, None)
            names = segment_names(disk.list_dir(directory))
            for at, segment in enumerate(names):
                base, following = int(segment), int(names[at + 1]) if at + 1 < len(names) else None
                below = following is not None and following <= select.start
                if below or (select.until is not None and base >= select.until):
                    continue
                path = f"{directory}/{segment}.log"
                try:
                    for batch in describe_batches(
                        disk,
                        path,
                        base,
                        from_offset=select.start,
                        epochs=epochs,
                        gaps_to=gaps_to,
                        records=select.records,
                    ):
                        yield {"partition": name, "segment": f"{segment}.log", **batch}
                except FileNotFoundError:
                    continue  # retention took it meanwhile

    print_batches(batches(), output, select)


def print_batches(batches: Iterable[Facts], output: str, select: Selection) -> None:
    if select.records:
        rows = select.recorded(batches)
        _stream(rows, output, lambda part: print_table(map(_record_row, part), _RECORD_COLUMNS))
    else:
        rows = select.batches(batches)
        columns = [name.replace("_", " ") for name in _BATCH_COLUMNS]
        _stream(rows, output, lambda part: print_table(map(_batch_row, part), columns))


def _stream(rows: Iterator[Facts], output: str, table: Callable[[list[Facts]], None]) -> None:
    """Print rows as they come, so that a log of any size can be dumped: one JSON or YAML list, or tables in parts."""
    if output == "json":
        import orjson

        comma = "["
        for row in rows:
            click.echo(f"{comma}\n  {orjson.dumps(row).decode()}", nl=False)
            comma = ","
        click.echo("[]" if comma == "[" else "\n]")
    elif output == "yaml":
        import yaml

        empty = True
        for row in rows:
            click.echo(yaml.safe_dump([row], sort_keys=False, allow_unicode=True), nl=False)
            empty = False
        if empty:
            click.echo("[]")
    else:
        part = list(islice(rows, _TABLE_ROWS))
        table(part)
        while len(part) == _TABLE_ROWS:
            part = list(islice(rows, _TABLE_ROWS))
            if part:
                table(part)


def _batch_row(batch: Facts) -> list[object]:
    from penstock.storage.offline.description import format_time

    cells = dict(batch)
    cells["flags"] = _flags(batch)
    cells["max_timestamp"] = format_time(batch.get("max_timestamp"))
    cells["crc"] = "ok" if batch["crc_ok"] else "BAD"
    return [cells.get(name) for name in _BATCH_COLUMNS]


def _record_row(row: Facts) -> list[object]:
    from penstock.storage.offline.description import format_time

    if "problem" in row:
        what = f"DAMAGED: {row['problem']} ({row['size']} bytes at {row['position']})"
        return [row["partition"], row["base_offset"], None, None, what, None, None]
    headers = ", ".join(f"{header['name']}={_text(header, 'value')}" for header in row["headers"])
    time = format_time(row["timestamp"])
    if row["marker"]:
        what = f"{row['marker']} marker"
        who = f"producer {row['producer_id']}, epoch {row['producer_epoch']}"
        return [row["partition"], row["offset"], time, None, who, None, what]
    flags = "control" if row["control"] else "tombstone" if row["tombstone"] else None
    return [row["partition"], row["offset"], time, _text(row, "key"), _text(row, "value"), headers or None, flags]


def _text(facts: Facts, name: str) -> str | None:
    if f"{name}_base64" in facts:
        return f"base64:{facts[f'{name}_base64']}"
    value = facts[name]
    return None if value is None else str(value)


def _flags(batch: Facts) -> str | None:
    names = [name for name in ("transactional", "control") if batch.get(name)]
    if batch.get("marker"):
        names.append(batch["marker"])
    if batch.get("delete_horizon") is not None:
        names.append("delete-horizon")
    if batch.get("timestamp_type") == "LogAppendTime":
        names.append("append-time")
    return ",".join(names) or None


def _print_card(card: Facts) -> None:
    from penstock.storage.offline.description import format_time

    largest = format_time(card["max_timestamp"])
    print_fields({**{k: v for k, v in card.items() if not isinstance(v, list)}, "max_timestamp": largest})
    click.echo()
    rows = [
        (entry["offset"], entry["position"], format_time(entry["largest_time_before"])) for entry in card["entries"]
    ]
    print_table(rows, ["offset", "position", "largest time before"])
    click.echo()
    for name in ("open_transactions", "aborted_transactions"):
        if rows := card[name]:
            print_table([list(row.values()) for row in rows], [key.replace("_", " ") for key in rows[0]])
            click.echo()
    size = card["block_bytes"]
    print_table([(at * size, each) for at, each in enumerate(card["block_sums"])], ["block at", "crc-32c"])


def _print_facts(facts: Facts) -> None:
    print_fields({name: value for name, value in facts.items() if not isinstance(value, list | dict)})
    for name, value in facts.items():
        rows = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        if rows:
            click.echo()
            columns = list(rows[0])
            cells = [[_cell(row[column]) for column in columns] for row in rows]
            print_table(cells, [column.replace("_", " ") for column in columns], title=name.replace("_", " "))


def _cell(value: object) -> object:
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return " ".join(map(str, value))
    if isinstance(value, list):
        return " ".join(f"{row['first_sequence']}-{row['last_sequence']}@{row['base_offset']}" for row in value)
    return value


def _first_offset(disk: "Disk", path: str) -> int:
    """Of a segment that has lost its name, such as next.log."""
    from penstock.records.batch import HEADER_BYTES, decode_header

    file = disk.open(path)
    head = file.read_at(HEADER_BYTES, 0)
    file.close()
    return decode_header(head).base_offset if len(head) == HEADER_BYTES else 0
