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
from penstock.observe.meanings import BROKER_GAUGES, Meaning
from penstock.observe.metrics import Exposition, Gauge
from penstock.observe.stats import Stats
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks import KINDS, kind_of
from penstock.pipelines.spec import tables
from penstock.protocols.kafka.handlers.api_versions import advertised
from penstock.protocols.kafka.session import APIS
from penstock.server.config_loading import explain
from penstock.server.config_table import SETTINGS
from penstock.server.doors import table as doors
from penstock.spark.options.option_table import OPTIONS

DOCS = Path(__file__).parents[1] / "docs"


def configuration() -> str:
    defaults = {each.key: each.value for each in explain(env={})}
    lines = [
        "# Configuration",
        "",
        "A broker reads its settings from a YAML file (`--config`, or `PENSTOCK_CONFIG`), then from the environment,",
        "then from flags; the last one wins. In the file keys are nested. In the environment write `PENSTOCK_` and the",
        "key, with `__` for each dot. As a flag write `--set KEY=VALUE`.",
        "`${VAR:default}` inside the file is replaced from the environment.",
        "",
        "| key | default | allowed | what it is |",
        "|---|---|---|---|",
    ]
    for setting in SETTINGS:
        default = defaults[setting.key]
        shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        lines.append(f"| `{setting.key}` | {shown} | {setting.allowed} | {setting.purpose} |")
    lines += [
        "",
        "## Listeners",
        "A broker listens for Kafka clients (`kafka`), for health and metrics (`http`), and in a cluster for the other",
        "brokers (`internal`). `listeners.NAME` says where, and `listeners.advertised_NAME` which address peers are",
        "told. These are short forms; `listeners` takes a list, which can name the same ones and more of them:",
        "",
        "```yaml",
        "listeners:",
        "- {protocol: kafka, address: 127.0.0.1:9092}",
        "- {name: outside, protocol: kafka, address: 0.0.0.0:9192, advertised: broker-1.example.com:9192}",
        "```",
        "",
        '- In the environment and in flags the list is one text, as JSON or YAML: `PENSTOCK_LISTENERS=\'[{"protocol":',
        '  "kafka", "address": "127.0.0.1:9092"}]\'`. It is one setting: the last layer that has it replaces it whole.',
        f"- `protocol` is one of {', '.join(f'`{name}`' for name in doors.KINDS)}. `name` is the protocol's",
        "  if you leave it out, and is unique. A listener that is both in the list and in a short form is refused.",
        "- `tls` is a map of `certificate` and `key`, and if you want `password_file`, `authority`, `client_auth`",
        "  (`none`, `request` or `require`), `revoked`, `names` and `sni`; [tls.md](tls.md) shows how. `auth` is what",
        "  clients log in by: `scram`, `plain`, `key`, `certificate`, or a list of them ([security.md](security.md));",
        "  HTTP listeners have `basic`, `key` and `certificate`. Without the two, clients speak in plain and are not",
        "  asked who they are.",
        "- A Kafka client is told, of every broker, the address of the listener that has the name of the one it came",
        "  to; of a broker without such a listener, the address of its listener `kafka`. So give listeners the same",
        "  names on all brokers.",
        "- `limits.max_connections`, `limits.max_receive_bytes` and `limits.max_answer_bytes` hold for all listeners",
        "  for Kafka clients together.",
        "- A broker opens the listeners you name, and `kafka`, `http` and (in a cluster) `internal` even if you do not",
        "  name them. If one of them cannot be opened, the broker does not start.",
        "- A start that names no listener at all, in no layer, opens the standard port of each protocol on 127.0.0.1.",
        "  If another process has port 9092 (or, in a cluster, 9094), the broker does not start. If another process",
        "  has 8080, the broker starts without health and metrics and logs one line that says so: whoever needs them",
        "  names `listeners.http`.",
        "- The `ready` line of `penstock serve` names every listener that is open: `ready kafka=127.0.0.1:9092",
        "  http=127.0.0.1:8080 outside=0.0.0.0:9192`.",
        "",
        "## Topic settings",
        "Set them when you create a topic, under Kafka's names, and change them at any time (`penstock",
        "topic alter`, or",
        "any Kafka tool). `defaults.topic.NAME` sets the broker's own default, for new and old topics.",
        "",
        "| name | default | type | what it is |",
        "|---|---|---|---|",
    ]
    for own in TOPIC_SETTINGS.values():
        lines.append(f"| `{own.name}` | {own.default} | {own.kind} | {own.documentation} |")
    lines += [
        "",
        "## While a cluster runs",
        "`penstock cluster config`, or Kafka's tools, change these without a restart.",
        "",
        f"- For one broker or for all: `{THROTTLE}`, how many bytes a second a broker copies of partitions that move.",
        f"- For one broker: `{CORDON}` (`penstock cluster cordon` and `drain` set it).",
        "- For all brokers: the defaults of topic settings, under the names Kafka's brokers have for them:",
        "  " + ", ".join(f"`{name}`" for name in sorted(TOPIC_DEFAULTS)) + ".",
    ]
    return "\n".join(lines) + "\n"


def kafka() -> str:
    rows = {fields["api_key"]: fields for fields in advertised(APIS)}
    lines = [
        "# The Kafka door",
        "",
        "This is what the broker advertises in ApiVersions. The broker derives it from its handlers, and this page is",
        "made from the same table.",
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
        "The test suite uses librdkafka (confluent-kafka, kcat), Java kafka-clients, kafka-python,",
        "aiokafka and Kafka's",
        "own tools. It tests every codec, values of 0 B to 1 MiB, headers, reads by offset and by time, groups of both",
        "protocols, and transactions.",
        "",
        "- The broker keeps batches as sent, compression included, unless the topic's `compression.type`",
        "  names a codec.",
        "  It refuses message formats 0 and 1.",
        "- The broker refuses a batch, before it writes anything, if its length, CRC, record count (also compared with",
        "  its bytes), attributes, sequence or time are wrong.",
        "- The broker checks every record of a batch before it takes the batch, compressed ones too: as many whole",
        "  records as the header says, offset deltas 0, 1, 2, …, nothing left over. Else it refuses the whole batch",
        "  with CORRUPT_MESSAGE. It refuses a batch that opens to more than 16 MiB with MESSAGE_TOO_LARGE, upon which",
        "  Java's producer splits it. The topic setting `records.check` names the codecs that are checked. With",
        "  `records.check=none` the broker takes what it gets, and a producer can write batches that stop each reader:",
        "  for trusted producers only. Batches from before this check was built are kept as they are.",
        "- Topic settings can be changed at any time and take effect at once (a new segment size at the next append).",
        "  In a cluster some of a broker's own settings can be changed, too; it reads the others at its start",
        "  ([configuration](configuration.md) says which).",
        "- Some of Kafka's topic settings have no effect here; the broker accepts and keeps them, for tools that set",
        "  them ([configuration](configuration.md) says which).",
        "- `cleanup.policy=compact` keeps the last record of each key, as Kafka's log cleaner does, with",
        "  delete horizons",
        "  (KIP-534) and transactions. The files have Kafka's format, and Kafka's DumpLogSegments reads them.",
        "- Groups and transactions are kept in `__consumer_offsets` and `__transaction_state`, as Kafka's own records,",
        "  which Kafka's formatters print. These topics have 16 partitions and are made when first needed. Clients can",
        "  read them, but not write to them, add partitions, delete them or delete their records. Clients can change",
        "  `segment.bytes`, `segment.ms`, `min.cleanable.dirty.ratio`, `max.compaction.lag.ms` and",
        "  `delete.retention.ms` within bounds, and the lists of throttled replicas that tools set; other settings are",
        "  refused with POLICY_VIOLATION. The broker's defaults (`defaults.topic`, `log.*`) do not apply",
        "  to them, except",
        "  a `min.insync.replicas` above 1.",
        "- A classic group waits 300 ms for more members after its first (Kafka: 3 s); see",
        "  `groups.initial_rebalance_delay_ms`. A group uses either the classic or the consumer protocol;",
        "  it can change",
        "  only when it is empty, not member by member.",
        "- Groups have settings of their own, as in Kafka (`kafka-configs.sh --entity-type groups`): `consumer.*` for",
        "  the consumer protocol, `share.*` and `errors.deadletterqueue.*` for share groups, within Kafka's default",
        "  bounds. They are kept in the metadata store, so every broker of a cluster goes by them, and they stay when",
        "  the group is deleted. The bounds are wider where the broker's own value is outside of them. Kafka's",
        "  settings of streams groups and of when groups are assigned anew are unknown here (INVALID_CONFIG).",
        "  In a cluster they can be set once every broker is of a release that has them.",
        "- A member of a share group is told its partitions in the answer to its join; Kafka tells it with a later",
        "  heartbeat. Where topics have the same subscribers, each partition has as many members as any other, and",
        "  each member as many partitions or one more. As in Kafka, an empty share group stays until it is deleted,",
        "  and no other group can have its name; here a group goes away by itself if it never had a partition.",
        "- Consumers of share groups (KIP-932) get records by whole batches or one by one, and acknowledge, release,",
        "  reject and renew them, as with Kafka. What no consumer can have (markers, aborted records, batches that",
        "  were compacted away) the broker settles itself and does not hand out. Not offsets but records in hands of",
        "  consumers are limited (`share.partition.max.record.locks`): one that is slow does not stop the partition.",
        "  A member that opens its session anew loses what it held in the earlier one at once, and not when the locks",
        "  end. A ShareFetch that waits is answered when the next request of its session comes.",
        "  Records that a consumer was lost with are given out in smaller parts from the second time on.",
        "  When a member is given up because it did not report, the brokers that lead its partitions end"
        " what it has leased; with Kafka that lasts until its locks end.",
        "- Where share groups stand is shown and changed as with Kafka (`kafka-share-groups.sh`: list, "
        "describe, reset-offsets, delete-offsets, delete).",
        "  A start offset is where the first record lies that is not settled; Kafka's may lag behind that.",
        "  A group that is told to begin where a partition has no records begins at the nearest offset "
        "that has, or will have.",
        "  A partition that does not exist stands nowhere (-1); Kafka does not answer for it.",
        "  If a partition's leader cannot be reached, the answer says so for that partition, which stays as it is.",
        "  DeleteGroups is refused with COORDINATOR_NOT_AVAILABLE then, and the group is there until it "
        "is deleted again; nobody can join it while it is being deleted.",
        "  DeleteGroups refuses a group that is a queue made with `penstock queue create` "
        "(POLICY_VIOLATION): `penstock queue delete` ends that one first.",
        "- Dead letters of share groups have key, value and headers of their records, unless "
        "`errors.deadletterqueue.copy.record.enable=false` is set for the group; with Kafka that is the "
        "default.",
        "- The broker deletes a group with more than 500 offsets in several batches, its own record last. Meanwhile it",
        "  answers requests for the group with COORDINATOR_LOAD_IN_PROGRESS, and clients ask again. It also writes a",
        "  commit or OffsetDelete of more than 500 partitions in several batches. Kafka writes one batch.",
        "- TxnOffsetCommit for a group that is a queue made with `penstock queue create` acknowledges messages by",
        "  receipts in the offset's metadata, and commits no offset",
        "  ([queues.md](queues.md#exactly-once-in-a-transaction)).",
        "- Clients that know transaction version 2 (KIP-890) use it. For older clients the broker asks the coordinator",
        "  at their first batch in a partition. With the older protocol, an end of a transaction that is",
        "  delayed on the",
        "  network may end the next transaction; no broker can mend that.",
        "- If a producer begins its next transaction while the last one's markers are being written, the",
        "  broker makes it",
        "  wait for them; Kafka answers CONCURRENT_TRANSACTIONS, and the client tries again later.",
        "- WriteTxnMarkers from a client can only abort a transaction that is open in the partition, in the epoch that",
        "  the partition knows. It cannot commit, write to internal topics, or write where no transaction is open",
        "  (INVALID_TXN_STATE). Its marker fences no producer, whatever epochs it names. `kafka-transactions.sh abort`",
        "  and `penstock txn abort` work on one broker and in a cluster; Kafka asks for ALTER on the cluster instead.",
        "- The broker refuses a batch outside a transaction (INVALID_TXN_STATE) while its producer has a transaction",
        "  open in the partition.",
        "- Not there: streams groups, two-phase commit (KIP-939), telemetry.",
        "- `message.timestamp.type=LogAppendTime` stamps batches with the broker's time.",
        "- After an unclean stop the broker begins a new leader epoch, so that consumers notice if a power cut took",
        "  records away (`flush=os` or `interval` only).",
        "- If one DescribeConfigs request names a resource several times, the broker answers it once;",
        "  Kafka answers each",
        "  time.",
        "- `max.message.bytes` is 10 MiB by default (Kafka: 1 MiB).",
        "",
        "## Rights",
        "Which right each request takes, and what is told to who lacks it, is as with Apache Kafka's own authorizer. A",
        "test asks every API as more than 150 users, each with rules of its own, and compares every answer with",
        "Kafka's (`tests/rights`). The same test looks in every answer, texts of refusals included, for topics that",
        "the asker has not named and may not see; a text calls those by the id or the group that the asker has named.",
        "These differ, and none of them lets anybody do or see more:",
        "",
        "| request | Kafka | Penstock |",
        "|---|---|---|",
        "| Fetch as a follower, with CLUSTER_ACTION | served | TOPIC_AUTHORIZATION_FAILED: a client is no replica |",
        "| OffsetForLeaderEpoch, with CLUSTER_ACTION | no other right is asked for"
        " | the right to describe the topic as well |",
        "| AddPartitionsToTxn 4 and above, with CLUSTER_ACTION | no other right is asked for"
        " | the rights to the transactional id and the topics as well: a client is no broker |",
        "| DescribeLogDirs, ListConfigResources | list every topic"
        " | topics that may not be described are not listed, whatever may be done to the cluster |",
        "| ListConfigResources of groups | lists every group that has settings"
        " | groups that may not be described are not listed, whatever may be done to the cluster |",
        "| ConsumerGroupHeartbeat with a regular expression"
        " | it stands for what the member that asks last may describe, also for others that have the same one"
        " | it stands for what each member may describe: two with the same one may get different topics |",
        "| DescribeConfigs of loggers | levels of its loggers | INVALID_REQUEST: loggers have no settings |",
        "| AlterConfigs and IncrementalAlterConfigs of a broker | sets some of them"
        " | INVALID_REQUEST: a broker of its own reads its settings when it starts |",
        "| ElectLeaders, AlterPartitionReassignments, UnregisterBroker | says that there is nothing to do"
        " | INVALID_REQUEST: a broker of its own has no other to elect, move to or forget |",
        "| OffsetDelete of a partition that does not exist | UNKNOWN_TOPIC_OR_PARTITION"
        " | deletes: offsets of partitions that are gone can be deleted |",
        "| DescribeUserScramCredentials without the right to | an error of the whole, and one for each user, without"
        " names | a refusal is told once, without rows |",
        "",
        "## What large requests cost others",
        "All requests share one event loop, so a large request delays the others by the length of its longest step.",
        "The table has CPU times by `python -m bench.stalls`, as of this page and with the sources of ff7c0a3. The",
        "broker had nine topics of 1,000 partitions, and each request named all of them:",
        "",
        "| | longest step, ms | at ff7c0a3 |",
        "|---|---|---|",
        "| OffsetCommit | 7 | 93 |",
        "| OffsetFetch of two groups | 9 | 75 |",
        "| ListOffsets, OffsetForLeaderEpoch, DeleteRecords | 2, 2, 5 | 37, 70, 25 |",
        "| Metadata, DescribeProducers, AddPartitionsToTxn | 6, 1, 5 | 69, 47, 28 |",
        "| Metadata of 18,000 topics that do not exist | 5 | 87 |",
        "| delete a group with 100,000 offsets | 4 | 457 |",
        "| commit 100,000 offsets (from inside: a request has at most 20,000 elements) | 13 | 788 |",
        "| 50 members join a group of the consumer protocol | 4 | 19 |",
        "| the same with 10,000 topics of one partition, the first and the 50th to join | 99, 19 | 154, 115 |",
        "",
        "The broker copies a request above 8 KiB and decodes it in steps. The connection takes the next request when",
        "this one is answered; after JoinGroup and SyncGroup, which wait for other members, when it is decoded. For a",
        "group that reads ten thousand topics the cost grows with the number of topics, not of partitions; use fewer",
        "topics with more partitions.",
    ]
    return "\n".join(lines) + "\n"


def spark_options() -> str:
    lines = [
        "# Options of the Spark source",
        "",
        'These are the options of `format("penstock")`; [spark.md](spark.md) is the guide. Upper and lower case do not',
        "matter; unknown options are errors.",
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
        "- Instead of a list with one text you may write the text alone.",
        "- Relative paths are relative to the file.",
        "",
        "## The pipeline",
        *_key_table(tables.PIPELINE),
        "",
        "## A source of topics",
        "Under `sources`, by its name. It needs `topic` or `pattern`.",
        "",
        *_key_table(tables.TOPIC_SOURCE),
        "",
        "## A source of files",
        "Under `sources`, by its name. It needs `files`.",
        "",
        *_key_table(tables.FILES_SOURCE),
        "",
        "## A step",
        "Under `steps`, by its name. It needs `sql` or `python`.",
        "",
        *_key_table(tables.STEP),
        "",
        "## An expectation",
        "In the list `expect` of a source or step. `{NAME: PREDICATE}` is short for one with `otherwise: quarantine`;",
        "you may also write `{NAME: {that: ..., otherwise: ...}}`.",
        "",
        *_key_table(tables.EXPECTATION),
        "",
        "## A watermark",
        "Under `watermark` of a source or step.",
        "",
        *_key_table(tables.WATERMARK),
        "",
        "## Dead letters",
        "Under `dead_letters`; instead of these keys you may write the word `log` or `drop`.",
        "",
        *_key_table(tables.DEAD_LETTERS),
    ]
    return "\n".join(lines) + "\n"


def sinks() -> str:
    lines = [
        "# Sinks",
        "",
        "A sink says where a pipeline's rows go. It stands under `sinks`, by a name that you choose. One",
        "of its keys is",
        "the name of a kind of sink, below; that key's value says where the rows go. Each sink also has `from`:",
        f"{tables.SINK_FROM.help[0].lower()}{tables.SINK_FROM.help[1:]}",
        "[pipelines.md](pipelines.md) is the manual and says how each micro-batch is written once.",
    ]
    for name in KINDS:
        kind = kind_of(name)
        example = ["```yaml", "sinks:", *(f"  {line}" for line in kind.EXAMPLE.strip().splitlines()), "```"]
        lines += ["", f"## {name}", kind.ABOUT.strip(), "", *example, "", *_key_table(kind.KEYS)]
    return "\n".join(lines) + "\n"


def _example(meaning: Meaning) -> Gauge:
    if meaning.labels:
        return {("",) * len(meaning.labels): 0.0}
    return {"": 0.0} if meaning.label else 0.0


def metrics() -> str:
    """Everything a scrape of a broker has; one that has served a request, so that its labels show."""
    stats = Stats()
    stats.request("kafka", "produce")
    gauges = {meaning.field: _example(meaning) for meaning in BROKER_GAUGES}
    body, _ = Exposition(stats, lambda: gauges).render()
    lines = [
        "# Metrics",
        "",
        "The broker serves metrics in Prometheus' format at `GET /metrics` on the HTTP listener (`listeners.http`).",
        "Where rules decide who may do what, that takes a login with the right to describe the cluster: Prometheus",
        "sends an API key (`authorization`) or a password (`basic_auth`). The metrics listener (`listeners.metrics`,",
        "`--metrics 9090`, off unless it is named) serves nothing but these figures and `/health`, to whoever can",
        "connect: on loopback for what runs beside the broker, elsewhere with TLS and logins. The",
        "number of series is bounded: no label is a topic, a group or anything else that clients name, except",
        "queues that somebody made.",
        "For groups there",
        "are only sums; `penstock group lag` says which group lags.",
        "Of queues the first hundred by name have series with their names (`topic`, `group`), and all others, share",
        "groups among them, are added up under empty names.",
        "Whoever may read these figures reads these names, too.",
        "What queues have done is counted by each broker since its start, when it is decided.",
        "",
        "Metrics of the whole cluster (`leaderless`, `elr_members`, `last_members`, `moving`, `members`,",
        "`brokers`) say",
        "what each broker knows of it: combine them with `max`. Metrics of what a broker leads, holds or coordinates:",
        "combine them with `sum`. Only brokers of a cluster have the metrics of replication and the",
        "cluster; metrics of",
        "groups and the disk appear within seconds after the start.",
        "",
        "`deploy/prometheus` has recording rules, alert rules and an example configuration. `deploy/grafana` has three",
        "dashboards (overview, cluster, groups and queues) and the files that make Grafana load them.",
        "Every alert names a section",
        "of the [runbook](runbook.md).",
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
