"""Options of reads and writes: defaults, meanings, and what is refused with which words."""

import pickle
import re
from pathlib import Path

import pytest

from penstock.client.sasl import Sasl
from penstock.client.security import Security
from penstock.client.settings import Settings
from penstock.records.compression import Codec
from penstock.spark.errors import OptionError
from penstock.spark.options.client_properties import IGNORED, SECURITY
from penstock.spark.options.option_table import REFUSALS, Use, check_names
from penstock.spark.options.options import (
    OPTIONS,
    ReadOptions,
    Subscription,
    WriteOptions,
    parse_columns,
    parse_read,
    parse_write,
)
from penstock.spark.options.positions import EARLIEST, LATEST, Positions

BROKERS = {"kafka.bootstrap.servers": "one:9092, two:9093"}
ORDERS = {**BROKERS, "subscribe": "orders"}


def read(streaming: bool = False, **options: str) -> ReadOptions:
    return parse_read({**ORDERS, **_dotted(options)}, streaming=streaming)


def write(streaming: bool = False, **options: str) -> WriteOptions:
    return parse_write({**BROKERS, **_dotted(options)}, streaming=streaming)


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", ".").lower(): value for name, value in options.items()}


def test_defaults_of_a_batch_read() -> None:
    assert read() == ReadOptions(
        settings=Settings("one:9092, two:9093", patience_s=60.0),
        subscription=Subscription("subscribe", topics=("orders",)),
        starting=Positions("startingOffsets", everywhere=EARLIEST),
        ending=Positions("endingOffsets", everywhere=LATEST),
        columns=("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        max_rows=None,
        max_bytes=None,
        min_partitions=None,
        max_records_per_partition=None,
        fail_on_data_loss=True,
        pushdown=False,
        read_committed=True,
        format_options={},
        path=None,
        poll_timeout_s=120.0,
        fetch_bytes=8 << 20,
    )


def test_a_stream_starts_at_the_latest() -> None:
    assert read(streaming=True).starting.everywhere == LATEST


def test_what_a_read_can_be_told() -> None:
    options = read(
        failOnDataLoss="FALSE",
        minPartitions=" 8 ",
        maxRecordsPerPartition="5000000000",
        pushdown="true",
        path="/data",
        kafkaConsumer__pollTimeoutMs="1500",
        kafka__max__partition__fetch__bytes="1024",
        kafka__isolation__level="READ_UNCOMMITTED",
        kafka__request__timeout__ms="2500",
        kafka__client__id="me",
        kafka__receive__buffer__bytes="-1",
        kafka__default__api__timeout__ms="500",
    )
    assert not options.fail_on_data_loss and options.pushdown and not options.read_committed
    assert (options.min_partitions, options.max_records_per_partition) == (8, 5_000_000_000)
    assert (options.path, options.poll_timeout_s, options.fetch_bytes) == ("/data", 1.5, 1024)
    assert options.settings == Settings(
        "one:9092, two:9093", timeout_s=2.5, client_id="me", receive_buffer_bytes=-1, patience_s=0.5
    )


def test_names_in_any_case() -> None:
    options = {
        "Kafka.Bootstrap.Servers": "one:9092",
        "SUBSCRIBE": "a",
        "MinPartitions": "2",
        "KAFKA.Isolation.Level": "read_uncommitted",
    }
    parsed = parse_read(options, streaming=False)
    assert parsed.min_partitions == 2 and not parsed.read_committed


@pytest.mark.parametrize("streaming", [False, True])
def test_options_can_be_sent_to_other_processes(streaming: bool) -> None:
    options = read(streaming, startingOffsets='{"orders":{"0":5}}', value__format="json", value__schema="a INT")
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes
    written = write(streaming, topic="t")
    assert pickle.loads(pickle.dumps(written)) == written  # noqa: S301 - our own bytes


@pytest.mark.parametrize("streaming", [False, True])
def test_brokers_must_be_named(streaming: bool) -> None:
    for parse, options in ((parse_read, {"subscribe": "a"}), (parse_write, {"topic": "a"})):
        with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is not set: name the brokers, such as"):
            parse(options, streaming=streaming)


def test_a_batch_read_of_a_directory_needs_no_broker() -> None:
    assert parse_read({"subscribe": "a", "path": "/data"}, streaming=False).settings.bootstrap == ""
    with pytest.raises(OptionError, match="bootstrap"):
        parse_read({"subscribe": "a", "path": "/data"}, streaming=True)


@pytest.mark.parametrize("servers", ["one:port", "one:0", ",", ":9092"])
def test_brokers_that_are_no_addresses(servers: str) -> None:
    with pytest.raises(OptionError, match=r"kafka\.\* options: .*HOST:PORT"):
        read(kafka__bootstrap__servers=servers)


def test_security_comes_from_the_client_and_so_do_its_refusals() -> None:
    options = read(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__username="ann",
        kafka__sasl__password="secret",  # noqa: S106 - of nobody
    )
    assert options.settings.security != Security()
    assert "secret" not in repr(options)
    with pytest.raises(OptionError, match="GSSAPI"):
        write(kafka__security__protocol="SASL_PLAINTEXT", kafka__sasl__mechanism="GSSAPI")


# --- What to read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": " a, ,b,,a "}, Subscription("subscribe", topics=("a", "b"))),
        ({"assign": '{"a":[2,0,2],"b":["1"],"c":[]}'}, Subscription("assign", assigned={"a": (0, 2), "b": (1,)})),
        ({"subscribepattern": r" orders-\d+ "}, Subscription("subscribePattern", pattern=r"orders-\d+")),
    ],
)
def test_three_ways_to_say_what_to_read(options: dict[str, str], expected: Subscription) -> None:
    assert parse_read({**BROKERS, **options}, streaming=False).subscription == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of subscribe, assign and subscribePattern; none of them is set"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are set"),
        (
            {"subscribe": "a", "assign": "{}", "subscribepattern": "a"},
            "subscribe and assign and subscribePattern are set",
        ),
        ({"subscribe": " , "}, "subscribe = ' , ' names no topic"),
        ({"assign": "a"}, r"assign = 'a': not the JSON it should be .*; an example is {\"orders\":\[0,1\]}"),
        ({"assign": "[]"}, "not a JSON object"),
        ({"assign": "{}"}, "names no partition"),
        ({"assign": '{"a":[]}'}, "names no partition"),
        ({"assign": '{"a":0}'}, "topic 'a' has no list of partitions"),
        ({"assign": '{"a":[-1]}'}, "-1 is not a partition of topic 'a'"),
        ({"assign": '{"a":[true]}'}, "True is not a partition"),
        ({"assign": '{"a":[1.0]}'}, "1.0 is not a partition"),
        ({"assign": '{"a":[2147483648]}'}, "2147483648 is not a partition"),
        ({"assign": '{"a":[0],"a":[1]}'}, "'a' is there twice"),
        ({"assign": "[" * 100_000}, "not the JSON it should be"),
        ({"subscribepattern": " "}, "subscribePattern is empty"),
        ({"subscribepattern": "a(b"}, r"subscribePattern = 'a\(b' is not valid: missing \)"),
        ({"subscribepattern": "(?=a)"}, "without look-around"),
    ],
)
def test_what_cannot_be_read(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_read({**BROKERS, **options}, streaming=False)


def test_a_pattern_that_is_not_valid_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError):
        parse_read({**BROKERS, "subscribepattern": "a("}, streaming=False)
    assert capfd.readouterr() == ("", "")


def test_start_and_end_are_looked_at_together() -> None:
    with pytest.raises(OptionError, match="startingOffsets of orders-0 is 5, behind endingOffsets, 4"):
        read(startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":4}}')


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_limits_are_a_streams() -> None:
    assert read(streaming=True, maxOffsetsPerTrigger="10").max_rows == 10
    assert read(streaming=True, maxBytesPerTrigger="5000000000").max_bytes == 5_000_000_000
    assert read(maxOffsetsPerTrigger="10").max_rows is None
    assert read(maxBytesPerTrigger="10").max_bytes is None


def test_filters_are_a_batch_reads() -> None:
    assert not read(streaming=True, pushdown="true").pushdown


@pytest.mark.parametrize("streaming", [False, True])
def test_one_limit_at_a_time(streaming: bool) -> None:
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger and maxBytesPerTrigger are both set"):
        read(streaming, maxOffsetsPerTrigger="1", maxBytesPerTrigger="1")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("minPartitions", "0", "minPartitions = '0': it is a whole number from 1 to 2147483647"),
        ("minPartitions", "2147483648", "from 1 to"),
        ("maxRecordsPerPartition", "-1", "from 1 to 9223372036854775807"),
        ("maxOffsetsPerTrigger", "1e3", "maxOffsetsPerTrigger = '1e3'"),
        ("maxBytesPerTrigger", "1" * 5000, "maxBytesPerTrigger = .* whole number"),
        ("kafkaConsumer.pollTimeoutMs", "soon", "pollTimeoutMs"),
        ("kafka.request.timeout.ms", "١", "whole number"),  # noqa: RUF001 - a digit, but not one of ours
        ("failOnDataLoss", "yes", "failOnDataLoss = 'yes': it is one of true, false"),
        ("includeHeaders", "1", "includeHeaders"),
        ("kafka.isolation.level", "committed", "one of read_committed, read_uncommitted"),
        ("path", " ", "path is empty; give it a value, or leave it out"),
    ],
)
def test_values_that_cannot_be(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_read({**ORDERS, name.lower(): value}, streaming=True)


# --- Formats ---------------------------------------------------------------------------------------------------------


def test_format_options_lose_their_prefix() -> None:
    options = read(value__format="avro", value__schema__file="/a.avsc", value__prefix="v_")
    assert options.format_options == {"format": "avro", "schema.file": "/a.avsc", "prefix": "v_"}


def test_format_options_without_a_format() -> None:
    with pytest.raises(OptionError, match=r"value\.message, value\.schema without value\.format: set it to json, avro"):
        read(value__schema="a INT", value__message="A")


def test_the_schema_needs_no_brokers() -> None:
    options = {"columns": "offset", "value.format": "json", "value.schema": "a INT", "endingOffsets": "latest"}
    assert parse_columns(options) == (("offset",), {"format": "json", "schema": "a INT"})
    assert parse_columns({"includeHeaders": "true"})[0][-1] == "headers"


def test_the_schema_checks_names_already() -> None:
    with pytest.raises(
        OptionError, match="'topic' is for writes, and this is a read; say what to read with 'subscribe'"
    ):
        parse_columns({"topic": "orders"})


# --- Writes ----------------------------------------------------------------------------------------------------------


def test_defaults_of_writes() -> None:
    batch = write()
    assert batch == WriteOptions(
        settings=Settings("one:9092, two:9093", patience_s=60.0),
        topic=None,
        delivery="at-least-once",
        transactional_id=None,
        checkpoint=None,
        acks=-1,
        codec=Codec.NONE,
        batch_bytes=900_000,
        include_headers=True,
        delivery_timeout_s=120.0,
        transaction_timeout_ms=900_000,
        check_repeats=True,
    )
    assert write(streaming=True).delivery == "exactly-once"
    assert not write(streaming=True, checkRepeats="false").check_repeats
    with pytest.raises(OptionError, match=r"kafka\.transaction\.timeout\.ms = '1800001'"):
        write(kafka__transaction__timeout__ms="1800001")


def test_what_a_write_can_be_told() -> None:
    options = write(
        streaming=True,
        topic=" orders ",
        delivery="Exactly-Once",
        transactional__id="nightly",
        checkpointLocation="/cp",
        queryName="q",
        kafka__acks="all",
        kafka__compression__type="ZSTD",
        kafka__batch__size="40000",
        includeHeaders="false",
        kafka__delivery__timeout__ms="500",
        kafka__transaction__timeout__ms="60000",
    )
    assert (options.topic, options.transactional_id, options.checkpoint) == ("orders", "nightly", "/cp")
    assert (options.codec, options.batch_bytes, options.include_headers) == (Codec.ZSTD, 40_000, False)
    assert (options.delivery_timeout_s, options.transaction_timeout_ms) == (0.5, 60_000)


@pytest.mark.parametrize(("text", "acks"), [("all", -1), ("-1", -1), ("1", 1), ("0", 0)])
def test_acks(text: str, acks: int) -> None:
    assert write(kafka__acks=text).acks == acks


def test_small_batches_are_made_larger() -> None:
    assert write(kafka__batch__size="0").batch_bytes == 16_384


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.acks": "1"}, "kafka.acks = 1 cannot be exactly once: leave it out, or set delivery=at-least-once"),
        ({"kafka.acks": "2"}, "kafka.acks = '2': it is one of all, -1, 0, 1"),
        ({"delivery": "at-least-once", "transactional.id": "a"}, "transactional.id is for exactly-once"),
        ({"delivery": "at-most-once"}, "one of exactly-once, at-least-once"),
        ({"kafka.compression.type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.partitioner.ignore.keys": "true"}, "not offered: drop the column key"),
        ({"topic": ""}, "topic is empty"),
    ],
)
def test_writes_that_cannot_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write({**BROKERS, **options}, streaming=True)


# --- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        ("startingOffset", Use.BATCH_READ, "there is no option 'startingOffset'; did you mean 'startingOffsets'"),
        ("acks", Use.BATCH_WRITE, "did you mean 'kafka.acks'[?]$"),
        ("columms", Use.BATCH_READ, "did you mean 'columns'"),
        ("kafka.bootstrap.server", Use.BATCH_WRITE, "did you mean 'kafka.bootstrap.servers'"),
        ("bootstrap.servers", Use.STREAM_READ, "did you mean 'kafka.bootstrap.servers'[?]$"),
        ("ssl.truststore.location", Use.STREAM_READ, "did you mean 'kafka.ssl.truststore.location'[?]$"),
        ("kafka.ssl.trustore.location", Use.STREAM_READ, "did you mean 'kafka.ssl.truststore.location'"),
        ("zzzz", Use.BATCH_READ, "there is no option 'zzzz'; the manual's page on Spark options lists what there is"),
        ("kafka.ssl.*", Use.BATCH_READ, r"there is no option 'kafka.ssl.\*'"),
        ("x" * 1000, Use.BATCH_READ, "there is no option 'x{100}';"),
        (
            "endingTimestamp",
            Use.STREAM_READ,
            "'endingTimestamp' is for batch reads, and this is a streaming read; leave it out",
        ),
        ("endingOffsetsByTimestamp", Use.STREAM_READ, "'endingOffsetsByTimestamp' is for batch reads"),
        (
            "topic",
            Use.STREAM_READ,
            "'topic' is for writes, and this is a streaming read; say what to read with 'subscribe'",
        ),
        (
            "subscribe",
            Use.BATCH_WRITE,
            "'subscribe' is for reads, and this is a batch write; say where rows go with 'topic'",
        ),
        ("delivery", Use.BATCH_READ, "'delivery' is for writes"),
        ("path", Use.BATCH_WRITE, "'path' is for reads, and this is a batch write; leave it out"),
        ("minOffsetsPerTrigger", Use.STREAM_READ, "'minOffsetsPerTrigger' cannot be set: it is not offered"),
        ("maxTriggerDelay", Use.BATCH_READ, "'maxTriggerDelay' cannot be set: it is not offered"),
        ("kafka.auto.offset.reset", Use.STREAM_READ, "cannot be set: say where to start with startingOffsets"),
        ("kafka.key.deserializer", Use.BATCH_READ, "keys and values are bytes here"),
        ("kafka.value.deserializer", Use.BATCH_READ, "keys and values are bytes here"),
        ("kafka.enable.auto.commit", Use.STREAM_READ, "the checkpoint keeps what was read"),
        ("kafka.interceptor.classes", Use.STREAM_READ, "no Java class runs here"),
        ("kafka.interceptor.classes", Use.STREAM_WRITE, "no Java class runs here"),
        ("kafka.key.serializer", Use.BATCH_WRITE, "the column key must be a string or binary"),
        ("kafka.value.serializer", Use.BATCH_WRITE, "the column value must be a string or binary"),
        ("kafka.partitioner.class", Use.STREAM_WRITE, "choose partitions with a column partition"),
        ("kafka.transactional.id", Use.STREAM_WRITE, "name it with transactional.id"),
        ("paths", Use.BATCH_READ, "path takes one directory"),
        ("provider", Use.READ, "CREATE TEMPORARY VIEW"),
    ],
)
def test_names_that_are_refused(name: str, use: Use, message: str) -> None:
    for written in (name, name.lower(), name.upper()):
        with pytest.raises(OptionError, match=re.compile(message, re.IGNORECASE)):
            check_names({written: "x"}, use)


@pytest.mark.parametrize("use", [Use.BATCH_READ, Use.STREAM_READ, Use.BATCH_WRITE, Use.STREAM_WRITE])
def test_kafkas_own_names_are_accepted(use: Use) -> None:
    refused = {refusal.name for refusal in REFUSALS if use in refusal.use}
    names = {f"kafka.{name}" for name in SECURITY | IGNORED} - refused
    check_names(
        [*names, "groupIdPrefix", "kafka.group.id", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"], use
    )
    assert len(names) > 120


def test_what_a_read_shares_with_a_write_does_not_stop_it() -> None:
    shared = {
        "kafka.acks": "nonsense",
        "kafka.linger.ms": "5",
        "kafka.key.serializer": "x",
        "checkpointLocation": "/cp",
    }
    assert read(streaming=True).columns == parse_read({**ORDERS, **shared}, streaming=True).columns


# --- The table -------------------------------------------------------------------------------------------------------


def test_the_table_is_fit_to_print() -> None:
    seen: dict[str, Use] = {}
    for option in OPTIONS:
        assert option.meaning.endswith(".") and "|" not in option.meaning + option.default, option
        assert not option.use & option.ignored, option
        assert not option.use & seen.get(option.name, Use(0)), f"{option.name} is there twice for one use"
        seen[option.name] = seen.get(option.name, Use(0)) | option.use
    assert not {f"kafka.{name}" for name in IGNORED} & set(seen)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (Use.READ, "reads"),
        (Use.BATCH_READ, "batch reads"),
        (Use.STREAM_WRITE, "streaming writes"),
        (Use.ALL, "reads and writes"),
        (Use.READ | Use.STREAM_WRITE, "reads and streaming writes"),
    ],
)
def test_uses_as_a_person_says_them(use: Use, text: str) -> None:
    assert use.text == text


SCRAM = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM-SHA-512"}


def hush(tmp_path: Path) -> str:
    file = tmp_path / "ann.password"
    file.touch(0o600)
    file.write_text("hush\n")
    return str(file)


def test_a_password_comes_by_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "other")
    named = {**ORDERS, **SCRAM, "kafka.sasl.username": "ann"}
    of_file = parse_read({**named, "kafka.sasl.password.file": hush(tmp_path)}, streaming=True)
    assert of_file.settings.security.sasl == Sasl("SCRAM-SHA-512", "ann", "hush")
    assert parse_read(named, streaming=False).settings.security.sasl == Sasl("SCRAM-SHA-512", "ann", "other")
    own = {**named, "kafka.sasl.password": "own"}
    assert parse_read(own, streaming=False).settings.security.sasl == Sasl("SCRAM-SHA-512", "ann", "own")
    assert parse_read(ORDERS, streaming=False).settings.security == Security()
    for said in (repr(of_file), str(of_file.settings)):
        assert "ann" in said and "hush" not in said


def test_a_password_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = Path(hush(tmp_path))
    file.chmod(0o644)
    named = {**ORDERS, **SCRAM, "kafka.sasl.username": "ann", "kafka.sasl.password.file": str(file)}
    with pytest.raises(OptionError, match="chmod 600") as refused:
        parse_read(named, streaming=False)
    assert "hush" not in str(refused.value)


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PENSTOCK_SERVER", "PENSTOCK_CONTEXT", "PENSTOCK_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / ".penstock" / "config.yaml"
    file.parent.mkdir()
    login = f"security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.password.file: {hush(tmp_path)}"
    file.write_text(
        "current: near\ncontexts:\n"
        f"  near: {{server: 'near:1', properties: {{{login}, sasl.username: ann}}}}\n"
        "  bad: {server: 'bad:1', properties: {sasl.password: swordfish}}\n"
    )
    return file


def test_a_context_has_brokers_and_a_login(contexts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = Sasl("PLAIN", "ann", "hush")
    for options in ({"context": "near"}, {}):
        monkeypatch.setenv("PENSTOCK_CONTEXT", "" if options else "near")
        settings = parse_write(options, streaming=False).settings
        assert (settings.bootstrap, settings.security.sasl) == ("near:1", ann)
    settings = parse_write({**BROKERS, "context": "near"}, streaming=False).settings
    assert (settings.bootstrap, settings.security.sasl) == (BROKERS["kafka.bootstrap.servers"], ann)
    assert parse_write(BROKERS, streaming=False).settings.security == Security(), "it may be for other brokers"
    monkeypatch.setenv("PENSTOCK_SERVER", "said:2")
    assert parse_write({}, streaming=False).settings == Settings("said:2", patience_s=60.0)
    assert parse_write({"context": "near"}, streaming=False).settings.bootstrap == "near:1"
    assert parse_read({"subscribe": "a", "path": "/data"}, streaming=False).settings.bootstrap == ""
    monkeypatch.setenv("PENSTOCK_PASSWORD", "bobs")
    bob = parse_write({"context": "near", "kafka.sasl.username": "bob"}, streaming=False).settings
    assert bob.security.sasl == Sasl("PLAIN", "bob", "bobs"), "nobody's password is tried for another"


@pytest.mark.parametrize(
    ("name", "told"), [("far", "context 'far' is unknown; known: bad, near"), ("bad", "holds a secret, sasl.password")]
)
def test_a_context_that_cannot_be_used(contexts: Path, name: str, told: str) -> None:
    with pytest.raises(OptionError, match=told) as refused:
        parse_write({"context": name}, streaming=False)
    assert "swordfish" not in str(refused.value)


BATCH = {"kafka.bootstrap.servers": "h:1", "batch.query": "q", "batch.id": "7"}
NAMED = {"delivery": "exactly-once", "transactional.id": "t"}


def test_a_write_may_say_which_micro_batch_it_is() -> None:
    assert parse_write({**BATCH, **NAMED}, streaming=False).batch == ("q", 7)
    assert parse_write({"kafka.bootstrap.servers": "h:1"}, streaming=False).batch is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({**BATCH, "transactional.id": "t"}, "transactional.id is for exactly-once"),
        ({**BATCH, "delivery": "exactly-once"}, r"set delivery=exactly-once and\s+transactional.id"),
        ({name: value for name, value in {**BATCH, **NAMED}.items() if name != "batch.id"}, "go together"),
        ({**BATCH, **NAMED, "batch.id": "-1"}, "batch.id"),
    ],
)
def test_micro_batches_that_cannot_be_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse_write(options, streaming=False)


def test_a_stream_ends_at_offsets() -> None:
    topic = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    assert parse_read({**topic, "endingOffsets": '{"t": {"0": 5}}'}, streaming=True).ending.each == {("t", 0): 5}
    with pytest.raises(OptionError, match="a stream ends at offsets"):
        parse_read({**topic, "endingOffsets": '{"t": {"0": -1}}'}, streaming=True)
