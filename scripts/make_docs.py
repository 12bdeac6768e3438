"""Writes the reference pages that are made from the code: docs/configuration.md, docs/kafka.md, docs/spark-options.md,
docs/pipeline-keys.md, docs/sinks.md and docs/metrics.md.

A unit test fails when a page no longer says what the code does; run `make docs` then.
"""

from operator import attrgetter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from scripts.sentences import mended

from penstock.cluster.broker_settings import THROTTLE, TOPIC_DEFAULTS
from penstock.cluster.image import CORDON
from penstock.engine.topic_config import SETTINGS as TOPIC_SETTINGS
from penstock.observe.meanings import BROKER_GAUGES
from penstock.observe.metrics import Exposition
from penstock.observe.stats import Stats
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks import KINDS, kind_of
from penstock.pipelines.spec import tables
from penstock.protocols.kafka.handlers.api_versions import advertised
from penstock.protocols.kafka.session import APIS
from penstock.server.config import Config
from penstock.server.config_table import PARTITIONS_KEY, SETTINGS
from penstock.spark.options.option_table import OPTIONS

DOCS = Path(__file__).parents[1] / "docs"


def configuration() -> str:
    defaults = Config()
    lines = [
        "# Configuration",
        "",
        "A YAML file (`--config`, or `PENSTOCK_CONFIG`), then the environment, then flags; the last wins. In the file",
        "keys nest; in the environment they are `PENSTOCK_` and the key with `__` for each dot; any of them is",
        "`--set KEY=VALUE` as a flag. `${VAR:default}` inside the file is replaced from the environment.",
        "",
        "| key | default | allowed | what it is |",
        "|---|---|---|---|",
    ]
    for setting in SETTINGS:
        key = "defaults.partitions" if setting.key == PARTITIONS_KEY else setting.key
        default = attrgetter(key)(defaults)
        shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        lines.append(f"| `{setting.key}` | {shown} | {setting.allowed} | {setting.purpose} |")
    lines += [
        "",
        "## Topic settings",
        "Given at creation under Kafka's names and changed at any time (`penstock topic alter`, or any Kafka tool);",
        "`defaults.topic.NAME` sets the broker's own default, for new and old topics alike.",
        "",
        "| name | default | type | what it is |",
        "|---|---|---|---|",
    ]
    for own in TOPIC_SETTINGS.values():
        lines.append(f"| `{own.name}` | {own.default} | {own.kind} | {own.documentation} |")
    lines += [
        "",
        "## While a cluster runs",
        "`penstock cluster config`, or Kafka's tools, change these without a restart. For one broker or for all:",
        f"`{THROTTLE}`, the bytes a second that replicas copy which move; for one broker:",
        f"`{CORDON}` (`penstock cluster cordon` and `drain` set it). For all brokers, the defaults of topic settings",
        "under the names Kafka's brokers have for them:",
        ", ".join(f"`{name}`" for name in sorted(TOPIC_DEFAULTS)) + ".",
    ]
    return "\n".join(lines) + "\n"


def kafka() -> str:
    rows = {fields["api_key"]: fields for fields in advertised(APIS)}
    lines = [
        "# The Kafka door",
        "",
        "What ApiVersions advertises; it is derived from the handlers, and this page from the same table.",
        "",
        "| key | API | advertised | served |",
        "|---|---|---|---|",
    ]
    for api in sorted(APIS, key=attrgetter("key")):
        row = rows[api.key]
        name = "".join(word.capitalize() for word in api.name.split("_"))
        lines.append(f"| {api.key} | {name} | {row['min_version']}-{row['max_version']} | {api.oldest}-{api.newest} |")
    lines += [
        "",
        "Clients in the test suite: librdkafka (confluent-kafka, kcat), Java kafka-clients, kafka-python, aiokafka;",
        "every codec, values of 0 B to 1 MiB, headers, by offset and by time; groups of both protocols, transactions",
        "and Kafka's own tools.",
        "",
        "- Batches are kept as sent, compression included, unless the topic's `compression.type` names a codec.",
        "  Message formats 0 and 1 are refused.",
        "- A batch is refused when its length, CRC, record count (held against its bytes, too), attributes, sequence",
        "  or time do not add up, before anything is written.",
        "- Topic settings can be changed at any time and act at once (a new segment size on the next append).",
        "  In a cluster some of a broker's own settings can be changed too, the rest are read at its start",
        "  ([configuration](configuration.md) says which).",
        "- Some topic settings of Kafka's have no meaning here; they are taken and kept, for tools that set them",
        "  ([configuration](configuration.md) says which).",
        "- `cleanup.policy=compact` keeps the last record of each key, as Kafka's log cleaner does (delete horizons of",
        "  KIP-534, transactions respected); the files are Kafka's, and DumpLogSegments reads them.",
        "- Groups and transactions live in `__consumer_offsets` and `__transaction_state`, in Kafka's own records,",
        "  which its formatters print. These topics have 16 partitions, are made when first needed, and are the",
        "  broker's own: clients can read them, not write, grow, delete or shorten them. Of their settings",
        "  `segment.bytes`, `segment.ms`, `min.cleanable.dirty.ratio`, `max.compaction.lag.ms` and",
        "  `delete.retention.ms` can be changed within bounds, and the throttled replicas that tools note; the rest is",
        "  POLICY_VIOLATION. Defaults of the broker (`defaults.topic`, `log.*`) do not reach them, but a",
        "  `min.insync.replicas` above 1.",
        "- A classic group waits 300 ms for more members after its first (Kafka: 3 s); see",
        "  `groups.initial_rebalance_delay_ms`. A group is either classic or of the consumer protocol; it changes kind",
        "  when it is empty, not member by member.",
        "- A group with more than 500 offsets is deleted in several batches, its own record last; whoever asks for it",
        "  meanwhile is told COORDINATOR_LOAD_IN_PROGRESS and asks again. A commit or OffsetDelete of more than 500",
        "  partitions is written in several batches, too. Kafka writes one batch.",
        "- Transactions speak version 2 (KIP-890) with clients that do. Older clients are checked with the",
        "  coordinator at their first batch in a partition; that an end delayed on the network may reach their next",
        "  transaction is a flaw of the older protocol which no broker can mend.",
        "- A producer that begins its next transaction while the last one's markers are being written waits for them;",
        "  Kafka answers CONCURRENT_TRANSACTIONS, and the client tries again later.",
        "- WriteTxnMarkers from anybody but a broker aborts a transaction that is open in the partition, in the epoch",
        "  the partition knows, and nothing else: no commit, no internal topic, nothing where nothing is open",
        "  (INVALID_TXN_STATE). Its marker fences nobody, whatever epochs it names. `kafka-transactions.sh abort` and",
        "  `penstock txn abort` work on one broker and in a cluster; Kafka asks for ALTER on the cluster instead.",
        "- A batch outside a transaction is refused (INVALID_TXN_STATE) while its producer has one open there.",
        "- Not there: share groups, streams groups, two-phase commit (KIP-939), telemetry.",
        "- `message.timestamp.type=LogAppendTime` stamps batches with the broker's time.",
        "- An unclean start begins a new leader epoch, so that a consumer notices records a power cut took back",
        "  (`flush=os` or `interval` only).",
        "- DescribeConfigs tells once what one request asks for again; Kafka tells it each time.",
        "- `max.message.bytes` is 10 MiB by default (Kafka: 1 MiB).",
        "",
        "## What large requests cost others",
        "All requests share one event loop, so a large one holds up the others for the length of its longest step.",
        "In CPU time, by `python -m bench.stalls` as of this page, and with the sources of ff7c0a3; a broker with",
        "nine topics of 1,000 partitions, requests that name all of them:",
        "",
        "| | longest step, ms | at ff7c0a3 |",
        "|---|---|---|",
        "| OffsetCommit | 17 | 93 |",
        "| OffsetFetch of two groups | 10 | 75 |",
        "| ListOffsets, OffsetForLeaderEpoch, DeleteRecords | 9, 8, 7 | 37, 70, 25 |",
        "| Metadata, DescribeProducers, AddPartitionsToTxn | 3, 2, 4 | 69, 47, 28 |",
        "| Metadata of 18,000 topics that do not exist | 63 | 87 |",
        "| delete a group with 100,000 offsets | 4 | 457 |",
        "| commit 100,000 offsets (from inside: a request has at most 20,000 elements) | 13 | 788 |",
        "| 50 members join a group of the consumer protocol | 4 | 19 |",
        "| the same with 10,000 topics of one partition, the first and the 50th to join | 99, 19 | 154, 115 |",
        "",
        "What is left of a commit is its decoding, two microseconds a partition: a frame is read in one step, as",
        "its memory is the next request's afterwards. It is not worth more: a client that commits 1,000 partitions",
        "at once costs 2 ms. A group that reads ten thousand topics costs by the topic, not by the partition; use",
        "fewer and wider ones.",
    ]
    return "\n".join(lines) + "\n"


def spark_options() -> str:
    lines = [
        "# Options of the Spark source",
        "",
        'For `format("penstock")`; [spark.md](spark.md) is the guide. The case of names does not count; unknown ones',
        "are errors.",
        "",
        "| option | for | default | what it does |",
        "|---|---|---|---|",
    ]
    for option in (each for each in OPTIONS if each.use):
        meaning = option.meaning.replace("|", "\\|")
        lines.append(f"| `{option.name}` | {option.use.text} | {option.default} | {meaning} |")
    ignored = ", ".join(f"`{option.name}`" for option in OPTIONS if not option.use)
    lines += ["", f"Accepted without effect: {ignored}, and every other property of Kafka's clients (`kafka.*`)."]
    return "\n".join(lines) + "\n"


def pipeline_keys() -> str:
    lines = [
        "# Keys of a pipeline's file",
        "",
        "[pipelines.md](pipelines.md) is the manual; the keys of sinks are in [sinks.md](sinks.md). Unknown keys are",
        "errors.",
        "",
        "- `${VAR}` and `${VAR:default}` are replaced from the environment, in every value; `$${` stands for `${`.",
        "- A duration is `500ms`, `90s`, `10m`, `1h`, `1d`, several of them (`1h30m`), or a number of seconds.",
        "- A size is `64KiB` (1024), `10MB` (a million) or a number of bytes.",
        "- A list of one text may be the text alone.",
        "- Relative paths are relative to the file.",
        "",
        "## The pipeline",
        *_key_table(tables.PIPELINE),
        "",
        "## A source of topics",
        "Under `sources`, by its name. It has `topic` or `pattern`.",
        "",
        *_key_table(tables.TOPIC_SOURCE),
        "",
        "## A source of files",
        "Under `sources`, by its name. It has `files`.",
        "",
        *_key_table(tables.FILES_SOURCE),
        "",
        "## A step",
        "Under `steps`, by its name. It has `sql` or `python`.",
        "",
        *_key_table(tables.STEP),
        "",
        "## An expectation",
        "In the list `expect` of a source or step. `{NAME: PREDICATE}` is short for one with `otherwise: quarantine`;",
        "`{NAME: {that: ..., otherwise: ...}}` does as well.",
        "",
        *_key_table(tables.EXPECTATION),
        "",
        "## A watermark",
        "Under `watermark` of a source or step.",
        "",
        *_key_table(tables.WATERMARK),
        "",
        "## Dead letters",
        "Under `dead_letters`; or the word `log` or `drop` in its place.",
        "",
        *_key_table(tables.DEAD_LETTERS),
    ]
    return "\n".join(lines) + "\n"


def sinks() -> str:
    lines = [
        "# Sinks",
        "",
        "Where a pipeline's rows go. Under `sinks`, by a name of your own; the key that is a kind's name says which",
        f"kind it is, and where. Each also has `from`: {tables.SINK_FROM.help[0].lower()}{tables.SINK_FROM.help[1:]}",
        "[pipelines.md](pipelines.md) is the manual and says how each micro-batch is written once.",
    ]
    for name in KINDS:
        kind = kind_of(name)
        example = ["```yaml", "sinks:", *(f"  {line}" for line in kind.EXAMPLE.strip().splitlines()), "```"]
        lines += ["", f"## {name}", kind.ABOUT.strip(), "", *example, "", *_key_table(kind.KEYS)]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Everything a scrape of a broker has; one that has served a request, so that its labels show."""
    stats = Stats()
    stats.request("kafka", "produce")
    gauges = {meaning.field: {"": 0.0} if meaning.label else 0.0 for meaning in BROKER_GAUGES}
    body, _ = Exposition(stats, lambda: gauges).render()
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` on the HTTP listener (`listeners.http`), in the form Prometheus asks for. The number of series",
        "is bounded: no label is a topic, a group or anything else that clients name. Of groups there are sums; which",
        "group lags says `penstock group lag`.",
        "",
        "What is of the cluster (`leaderless`, `elr_members`, `last_members`, `moving`, `members`, `brokers`) is what",
        "each broker knows of it: take it with `max`. What a broker leads, holds or coordinates: take it with `sum`.",
        "Metrics of replication and the cluster are there on brokers of a cluster only; those of groups and the disk",
        "appear within seconds after the start.",
        "",
        "`deploy/prometheus` has recording and alert rules and an example of a configuration, `deploy/grafana` three",
        "dashboards (overview, cluster, groups) and how Grafana is told of them. Every alert names a section of the",
        "[runbook](runbook.md).",
        "",
        "| metric | type | labels | what it is |",
        "|---|---|---|---|",
    ]
    for family in sorted(text_string_to_metric_families(body.decode()), key=attrgetter("name")):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        lines.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def _key_table(keys: Keys) -> list[str]:
    rows = [f"| `{key.name}` | {_allowed(key)} | {_default(key)} | {key.help.replace('|', '&#124;')} |" for key in keys]
    return ["| key | value | default | what it is |", "|---|---|---|---|", *rows]


def _allowed(key: Key) -> str:
    words = {"texts": "list of texts", "flag": "true, false", "any": "see there"}
    return ", ".join(f"`{each}`" for each in key.choices) or words.get(key.kind, key.kind)


def _default(key: Key) -> str:
    """As it would stand in a file."""
    value = key.default
    if key.required:
        return "required"
    if value is None or value in ("", (), {}):
        return ""
    if key.kind == "duration":
        return f"`{value:g}s`" if value < 60 or value % 60 else f"`{value // 60:g}m`"
    if key.kind == "size":
        powers = {"MiB": 2**20, "KiB": 2**10, "MB": 10**6, "kB": 10**3}
        unit = next((unit for unit, size in powers.items() if value % size == 0), "")
        return f"`{value // powers.get(unit, 1)}{unit}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


PAGES = {
    "configuration.md": configuration,
    "kafka.md": kafka,
    "spark-options.md": spark_options,
    "pipeline-keys.md": pipeline_keys,
    "sinks.md": sinks,
    "metrics.md": metrics,
}


def made(name: str) -> str:
    return mended(PAGES[name]())


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(made(name))
