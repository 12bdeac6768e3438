"""The parts of each suite: what is run, what it may cost, how much of the machine it wants.

A budget is some twice what the part costs in CPU seconds on two cores of 2024, and no less than what it takes there by
the clock. A part that costs more fails, for CPU time is nearly the same whoever else is on the machine. One that only
takes longer is named.

Every test file is in one part of `test`, and in one alone, but for those of compiled modules, which run over both
forms: a part takes a folder, or a folder without the files that others take, so that a new file has its place by
itself.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PYTEST = (sys.executable, "-m", "pytest")


@dataclass(frozen=True, slots=True)
class Part:
    """
    Attributes:
        budget_s: CPU seconds of all its processes.
        cores: how many it keeps busy. Parts that wait for time to pass want less than one.
        after: the name of a part that has to end first.
    """

    name: str
    command: tuple[str, ...]
    budget_s: int
    cores: float = 1.0
    after: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """Its name as that of a file."""
        return re.sub(r"\W+", "-", self.name)

    def words(self, report: Path) -> tuple[str, ...]:
        """The command; pytest tells of each test in the file named."""
        return (*self.command, f"--junitxml={report}") if self.command[: len(_PYTEST)] == _PYTEST else self.command

    def takes(self, file: str) -> bool:
        """Whether its tests are those of this file; all paths as seen from the root of the repository."""
        left_out = [word.partition("=")[2] for word in self.command if word.startswith("--ignore=")]
        return _has(self.command, file) and not _has(left_out, file)


def _has(paths: Sequence[str], file: str) -> bool:
    return any(file == path or file.startswith(f"{path}/") for path in paths)


@dataclass(frozen=True, slots=True)
class Suite:
    """
    Attributes:
        goes_on: also after a part has failed.
        page: where the table of a whole run is written.
    """

    parts: Sequence[Part]
    goes_on: bool = False
    page: Path | None = None


def _tests(name: str, *words: str, budget_s: int, without: Sequence[str] = (), **more: object) -> Part:
    left_out = [f"--ignore={path}" for path in without]
    return Part(name, (*_PYTEST, *words, *left_out), budget_s, **more)  # type: ignore[arg-type]


def _module(name: str, *words: str, budget_s: int, **more: object) -> Part:
    return Part(name, (sys.executable, "-m", *words), budget_s, **more)  # type: ignore[arg-type]


# A JVM in a test lives too short for its second compiler and for threads that collect garbage.
_BRIEF_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
_SPARK = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "XDG_CACHE_HOME": str(_ROOT / ".cache" / "user"),
}
_WARM = "Spark: a warm start"
_KAFKA = {"PENSTOCK_TEST_PEER": "kafka"}
_NOT_SLOW = ("-m", "not slow")
_LONG_QUEUE = {"QUEUE_MESSAGES": "100000", "QUEUE_KILLS": "20", "SCHEDULE_MINUTES": "5"}

_CHECK = Part("lint, types, contracts", ("make", "--no-print-directory", "check"), 100)
_UNIT = (
    _tests("unit: storage, records", "tests/unit/storage", "tests/unit/records", budget_s=120),
    _tests("unit: cluster", "tests/unit/cluster", budget_s=120, cores=0.4),
    _tests("unit: cli", "tests/unit/cli", budget_s=150),
    _tests("unit: pipelines, Spark", "tests/unit/pipelines", "tests/unit/spark", budget_s=200),
    _tests(
        "unit: all else",
        "tests/unit",
        "tests/runner",
        budget_s=200,
        without=[f"tests/unit/{room}" for room in ("storage", "records", "cluster", "cli", "pipelines", "spark")],
    ),
)
_PROPERTIES = (_tests("properties and seeds", "tests/property", budget_s=200),)
PURE = _tests(
    *("records in pure Python", "tests/unit/records", "tests/property/test_records.py"),
    budget_s=100,
    environment={"PENSTOCK_PURE": "1"},
)
"""The same tests over the sources of what is compiled."""

_GROUPS = ("tests/conformance/test_groups.py", "tests/conformance/test_offsets_committed.py")
_SHARES = tuple(f"tests/conformance/test_{name}.py" for name in ("shares", "share_queues", "share_tools"))
_TRANSACTIONS = ("tests/conformance/test_transactions.py",)
_SECURE = tuple(
    f"tests/conformance/test_{name}.py"
    for name in ("forged_lines", "http_door", "logins", "secure_clients", "tls_listeners", "tls_scan")
)
_CONFORMANCE = (
    _tests("conformance: groups", *_GROUPS, budget_s=100, cores=0.3),
    _tests("conformance: share groups", *_SHARES, budget_s=100, cores=0.3),
    _tests("conformance: transactions", *_TRANSACTIONS, budget_s=100, cores=0.3),
    _tests("conformance: TLS and logins", *_SECURE, budget_s=130, cores=0.3),
    _tests(
        "conformance: all else",
        "tests/conformance",
        budget_s=120,
        cores=0.3,
        without=[*_GROUPS, *_SHARES, *_TRANSACTIONS, *_SECURE],
    ),
)
_RIGHTS = _tests("rights: every cell", "tests/rights", budget_s=60)
_OPERATIONS = ("tests/cluster/test_operations.py", "tests/cluster/test_kafka_tools.py", "tests/cluster/test_runbook.py")
_SECURED = tuple(f"tests/cluster/test_{name}.py" for name in ("security", "certificates", "open_to_closed"))
_CLUSTER = (
    _tests("real cluster: kills", *_NOT_SLOW, "tests/cluster", budget_s=100, without=[*_OPERATIONS, *_SECURED]),
    _tests("real cluster: users, rules, certificates", *_SECURED, budget_s=200, cores=0.6),
    _tests("real cluster: moves, tools, the runbook", *_OPERATIONS, budget_s=240),
    _tests("real cluster: fault matrix, a few cells", "tests/matrix", budget_s=350, cores=0.4),
    _tests("real cluster: metrics, rules, dashboards", "tests/monitoring", budget_s=100),
)
_PENSTOCK = str(Path(sys.executable).with_name("penstock"))
_WARM_START = Part(_WARM, (_PENSTOCK, "spark", "warm"), 120, environment=_SPARK)
_WHOLE_PIPELINES = [f"tests/spark/pipelines/test_{name}.py" for name in ("masters", "pipeline_docs", "examples")]
_SPARK_TESTS = (
    _WARM_START,
    _tests(
        "Spark: source and sink",
        *_NOT_SLOW,
        "tests/spark",
        budget_s=300,
        without=["tests/spark/pipelines"],
        cores=0.8,
        after=_WARM,
        environment=_SPARK,
    ),
    _tests(
        *("Spark: pipelines", *_NOT_SLOW, "tests/spark/pipelines"),
        budget_s=400,
        without=_WHOLE_PIPELINES,
        cores=0.8,
        after=_WARM,
        environment=_SPARK,
    ),
    _tests(
        "Spark: masters, tutorial, examples",
        *_WHOLE_PIPELINES,
        budget_s=400,
        cores=0.8,
        after=_WARM,
        environment=_SPARK,
    ),
    _tests("Spark: kills", "tests/chaos_spark", budget_s=400, cores=0.8, after=_WARM, environment=_SPARK),
)

QUICK = (_CHECK, *_UNIT, *_PROPERTIES, PURE)
TEST = (
    *QUICK,
    *_CONFORMANCE,
    _RIGHTS,
    *_CLUSTER,
    *_SPARK_TESTS,
    _tests("real terminal", "tests/terminal", budget_s=50),
    _tests("real processes: kill, power cut, disk", "tests/chaos", budget_s=250),
    _tests("hostile peers: three workloads", "tests/hostile", budget_s=150),
    _tests("simulated cluster", "tests/simulation", budget_s=370),
    _tests("deployment", "tests/deploy", budget_s=60),
    _tests("models of replication and queues", "tests/model", budget_s=200, environment=_BRIEF_JVM),
)
LARGER_QUEUES = ("queue-three", "queue-changes", "queue-large", "queue-large-losses")
"""Configurations of the model of queues that take a minute each, one some minutes."""
_NIGHT = str(date.today().toordinal())
"""Five nights see every cell of the matrix."""
NIGHTLY = (
    _module(
        *("fault matrix: a fifth of all cells", "tests.matrix", "--cells", "sample", "--seed", _NIGHT),
        *("--json", str(_ROOT / ".cache" / "runs" / "matrix.json")),
        budget_s=2400,
    ),
    _module("hostile peers: all workloads", "tests.hostile", budget_s=600, cores=2),
    _module("fuzz: what is said before a login", "tests.fuzz.logins", "-max_total_time=240", budget_s=500),
    _module("soak: an hour", "tests.matrix.soak", budget_s=4800),
    _module(
        *("upgrade and back", "tests.cluster.upgrade", "--old", "HEAD~90"),
        budget_s=900,
    ),
    _module(
        *("simulated cluster: 5,250 seeds", "tests.simulation", "--seeds", "5250", "--first", "250", "--keep-going"),
        budget_s=3600,
        cores=2,
    ),
    _tests(
        *("one broker: kills, cuts and seeds", "--timeout", "7200", "tests/chaos", "tests/property"),
        budget_s=3600,
        environment={"KILLS": "100", "CUTS": "25", "SEEDS": "5000", "EXAMPLES": "1000", "HALF_OPEN": "5000"}
        | _LONG_QUEUE,
    ),
    _tests(
        "leaders and coordinators die", "--timeout", "7200", "tests/cluster", budget_s=1800, environment={"KILLS": "5"}
    ),
    Part("model of queues: larger", (str(_ROOT / "scripts" / "tlc"), *LARGER_QUEUES), budget_s=500, cores=2),
    _WARM_START,
    _tests(
        *("Spark: kills, each sink alone", "--timeout", "7200", "tests/chaos_spark"),
        budget_s=3600,
        after=_WARM,
        environment=_SPARK | {"KILLS": "3"},
    ),
    _tests(
        *("Spark: a million records", "tests/spark/pipelines/test_run.py", "-k", "many_records"),
        budget_s=300,
        after=_WARM,
        environment=_SPARK | {"RECORDS": "1000000"},
    ),
    _tests("Spark: a cold start", "-m", "slow", "tests/spark", budget_s=300, environment=_SPARK),
    _tests("Apache Kafka: real clients", "tests/conformance", budget_s=900, environment=_KAFKA),
    _tests("Apache Kafka: rights", "tests/rights/test_kafka_door.py", budget_s=200, environment=_KAFKA),
    _tests(
        "Apache Kafka: Spark",
        *_NOT_SLOW,
        "tests/spark",
        budget_s=900,
        after=_WARM,
        environment=_SPARK | _KAFKA,
    ),
    _tests("Apache Kafka: kills", *_NOT_SLOW, "tests/cluster", budget_s=600, environment=_KAFKA, without=_OPERATIONS),
)

SUITES = {
    "quick": Suite(QUICK),
    "test": Suite(TEST),
    "nightly": Suite(NIGHTLY, goes_on=True, page=_ROOT / "docs" / "nightly.md"),
}
