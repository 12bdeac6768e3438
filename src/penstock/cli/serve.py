"""`penstock serve`: one broker in this process, until a signal or a failure ends it.

Exit codes: 0 after a clean stop; 1 when the broker could not start, had to stop itself or could not stop in time, and
may be tried again; 2 when its settings are wrong, which another try does not mend. The broker and all it needs are
imported only after the arguments and settings are known to be good.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from penstock import __version__
from penstock.compiled import is_compiled
from penstock.errors import StartupError, WrongSettings
from penstock.observe import logs
from penstock.observe.stall import StallMonitor
from penstock.observe.stats import Stats
from penstock.server import config_loading
from penstock.server.config import Config, standard_address
from penstock.server.config_layers import ConfigError, Given, read_assignments
from penstock.server.config_table import SETTINGS, SHORT_PREFIX, TOPIC_PREFIX
from penstock.server.doors.table import KINDS, Opens

if TYPE_CHECKING:
    from penstock.server.broker import Broker

STOP_DEADLINE_S = 4.5  # supervisors are promised five
PARTITIONS_PER_S = 1000  # beyond that, each thousand partitions may take a second to leave in order

_INSECURE = "*** INSECURE ***  "
EXIT_CLEAN = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2

# Flag to setting; every other setting is reached with --set.
_FLAGS = {
    **{f"--{name}": SHORT_PREFIX + name for name in KINDS},
    "--data-dir": "data_dir",
    "--advertise": "listeners.advertised_kafka",
    "--node-id": "node.id",
    "--rack": "node.rack",
    "--cluster": "cluster.store",
    "--cluster-secret-file": "cluster.secret_file",
    "--log-level": "logging.level",
    "--log-format": "logging.format",
}


def _format_settings() -> str:
    width = max(len(setting.key) for setting in SETTINGS)
    rows = [f"  {setting.key:{width}}  {setting.purpose}" for setting in SETTINGS]
    rows.append(f"  {TOPIC_PREFIX + '*':{width}}  any topic setting, such as retention.ms or flush")
    return (
        "\b\n"
        "Settings, as a flag (--set node.id=2), in the environment (PENSTOCK_NODE__ID=2)\n"
        "or in the file (node: {id: 2}). A flag wins over the environment, that over the\n"
        "file. In the file, ${VAR:default} takes a value from the environment.\n\n\b\n" + "\n".join(rows)
    )


def _once(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """A flag that would otherwise silently win over its like before it."""
    if len(given) > 1:
        raise ConfigError(
            f"--{option.name} is given twice, as {' and '.join(given)}; keep one, or give further listeners names of "
            "their own in the list `listeners`"
        )
    return given[0] if given else None


def _listener_options(command: Callable[..., int]) -> Callable[..., int]:
    for name, kind in reversed(KINDS.items()):
        default = "off" if kind.opens is Opens.ON_REQUEST else standard_address(name)
        place = "[HOST:]PORT" if kind.may_lack_host else "HOST:PORT"
        words = f"{kind.deed} (default: {default})."
        command = click.option(f"--{name}", metavar=place, help=words, callback=_once, multiple=True)(command)
    return command


@click.command(
    "serve",
    help="""Run a broker. Prints one line starting with 'ready' when clients may connect; logs go to standard
    error. SIGTERM or Ctrl+C stops it cleanly, a second one at once.""",
    epilog=_format_settings(),
)
@click.option("--config", metavar="FILE", help="YAML file with settings (default: $PENSTOCK_CONFIG, or none).")
@click.option("--data-dir", metavar="DIR", help="Where logs and metadata are kept (default: ./data).")
@_listener_options
@click.option("--advertise", metavar="HOST:PORT", help="The Kafka address clients are told to use.")
@click.option("--node-id", metavar="N", help="This broker's id (default: 1).")
@click.option("--cluster", metavar="STORE", help="Join a cluster: etcd://H:P,H:P or 'embedded' (default: on its own).")
@click.option("--cluster-secret-file", metavar="FILE", help="The secret that all brokers of the cluster share.")
@click.option("--rack", metavar="NAME", help="The rack or zone this broker is in.")
@click.option("--insecure", is_flag=True, help="Allow listeners beyond loopback without TLS and logins, etcd in plain.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info).")
@click.option("--log-format", metavar="FORM", help="text or json (default: text).")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any setting; may be repeated.")
def command(config: str | None, insecure: bool, assignments: tuple[str, ...], **flags: str | None) -> int:
    given = _given_flags(flags, assignments)
    if insecure:
        given["insecure"] = Given(True, "flag --insecure")
    return serve(config, given)


def serve(file: str | None, given: Mapping[str, Given]) -> int:
    """Serve until told to stop; the result is the exit code."""
    os.umask(0o077)  # records are nobody else's business on this machine
    gc.set_threshold(50_000, 20, 50)  # a collection costs every client its length; most objects here die by count
    try:
        config = config_loading.load(file=file, flags=given)
    except StartupError as error:
        _say(error)
        return EXIT_REFUSED
    logs.configure(config.logging.level, config.logging.format)
    log = logs.get_logger("serve")
    _log_unraisable(log)
    _raise_descriptor_limit(log)
    if not is_compiled():
        log.warning("records are handled in pure Python, which is slower: this installation is not compiled")
    from penstock.server.broker import Broker

    for name in config.ignored_env:
        log.warning("environment variable is no setting, ignored", name=name)
    stats = Stats()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(lambda: Broker(config, stats, logs.get_logger("broker")), config, stats, log))


async def _serve(make_broker: "Callable[[], Broker]", config: Config, stats: Stats, log: logs.Logger) -> int:
    loop = asyncio.get_running_loop()
    told_to_stop = _StopSignal(loop, log)
    try:
        broker = make_broker()
        told_to_stop.deadline_s = lambda: STOP_DEADLINE_S + broker.partition_count / PARTITIONS_PER_S + broker.leaving_s
        start = asyncio.create_task(broker.start())
        await asyncio.wait({start, told_to_stop.waiter}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()  # recovery can be long; the log it leaves is as good as before
            await asyncio.wait({start})
        _show_first_admin(broker)  # whatever has become of the start: it is made once
        if not start.cancelled():
            start.result()
    except StartupError as error:
        logs.flush()
        _say(error)
        _leave(EXIT_REFUSED if isinstance(error, WrongSettings) else EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 - the last place that can still say why
        if isinstance(error, OSError) and error.filename:
            logs.flush()
            _say(StartupError(f"cannot start: {error.filename}: {error.strerror}"))
        else:
            log.critical("broker could not start", error=error)
        _leave(EXIT_FAILED)

    monitor = StallMonitor(stats, loop)
    if not told_to_stop.waiter.done():
        gc.freeze()  # what the start built lives as long as the process: never look at it again
        monitor.start()
        if broker.has_certificates:  # without any, the end of its terminal ends a broker, as always
            _reload_on_hangup(loop, broker)
        _announce(broker, config)
        await asyncio.wait({told_to_stop.waiter, broker.failed}, return_when=asyncio.FIRST_COMPLETED)
        if broker.failed.done():
            # No clean stop: its mark would promise a log this broker no longer vouches for.
            log.critical("broker stops itself", error=broker.failed.exception())
            _leave(EXIT_FAILED)
    monitor.stop()
    return await _stop(broker.stop(), told_to_stop.deadline_s(), log)


async def _stop(stopping: Coroutine[object, object, None], deadline_s: float, log: logs.Logger) -> int:
    task = asyncio.ensure_future(stopping)
    await asyncio.wait({task}, timeout=deadline_s)
    if not task.done():
        log.error("clean stop took too long, the next start will check the logs", deadline_s=deadline_s)
        _leave(EXIT_FAILED)
    if (error := task.exception()) is not None:
        log.critical("clean stop failed, the next start will check the logs", error=error)
        _leave(EXIT_FAILED)
    log.info("stopped")
    return EXIT_CLEAN


class _StopSignal:
    """The first SIGTERM or SIGINT asks for a clean stop; the second ends the process, loop or no loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: logs.Logger) -> None:
        self.waiter: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._log = log
        self.deadline_s: Callable[[], float] = lambda: STOP_DEADLINE_S
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(each)
            # The kernel spares a container's first process what it does to others by default.
            signal.signal(each, signal.SIG_DFL if os.getpid() != 1 else lambda number, _: os._exit(128 + number))
        if not self.waiter.done():
            self._log.info("stopping", signal=number.name)
            self.waiter.set_result(None)
            _arm_watchdog(self.deadline_s(), self._log)


def _log_unraisable(log: logs.Logger) -> None:
    """Have errors that Python can only print logged, and not as often as a peer likes: a name in TLS may cause one."""

    def tell(found: "sys.UnraisableHookArgs") -> None:
        log.limited("unraisable").error("an error that nobody was told of", reason=repr(found.exc_value))

    sys.unraisablehook = tell


def _reload_on_hangup(loop: asyncio.AbstractEventLoop, broker: "Broker") -> None:
    """Have SIGHUP load certificates again."""
    running: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(broker.reload())
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)


def _arm_watchdog(deadline_s: float, log: logs.Logger) -> None:
    """End the process even if the loop hangs or a worker thread never returns."""

    def end() -> None:
        log.error("process did not end in time", deadline_s=deadline_s)
        _leave(EXIT_FAILED)

    timer = threading.Timer(deadline_s + 0.25, end)
    timer.daemon = True
    timer.start()


def _leave(code: int) -> NoReturn:
    """End at once: no farewell of threads that may hang in a failing disk."""
    logs.flush()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _say(error: StartupError) -> None:
    print(f"penstock: {' '.join(str(error).split())}", file=sys.stderr, flush=True)


def _show_first_admin(broker: "Broker") -> None:
    if (password := broker.first_admin_password) is not None:
        shown = password.reveal().decode()
        print(f"user admin was made, with the password {shown} which is not shown again", file=sys.stderr, flush=True)
        broker.first_admin_password = None


def _announce(broker: "Broker", config: Config) -> None:
    words = broker.ready_words
    for line in _format_insecure(config):
        print(line, file=sys.stderr, flush=True)
    lines = [" ".join(["ready", *(f"{name}={word}" for name, word in words.items())])]
    if sys.stdout.isatty():
        lines.append(_format_welcome(words["kafka"], words.get("http"), config))
    try:
        print("\n".join(lines), flush=True)
    except OSError:
        logs.get_logger("serve").warning("nobody reads standard output")


def _format_insecure(config: Config) -> Iterator[str]:
    if config.exposed:
        listed = ", ".join(f"{each.name} at {each.address}" for each in config.exposed)
        yield f"{_INSECURE}Other machines can reach, without TLS or without a login: {listed}."
        yield f"{_INSECURE}Nobody knows who reads and writes there, or on the way. How to close it: docs/security.md"
    if config.exposed_store is not None:
        yield f"{_INSECURE}The metadata store is reached in plain: {config.cluster.store}."
        yield f"{_INSECURE}Keys of passwords and rules can be read and changed on the way. What to do: docs/cluster.md"


def _format_welcome(kafka: str, http: str | None, config: Config) -> str:
    probes = f"\n\n  curl http://{http}/health\n  curl http://{http}/metrics" if http is not None else ""
    return f"""
Penstock {__version__}, data in {config.data_dir}. From another terminal:

  echo hello | kcat -b {kafka} -P -t greetings
  kcat -b {kafka} -C -t greetings -e

  python3 -c "from confluent_kafka import Producer
  p = Producer({{'bootstrap.servers': '{kafka}'}}); p.produce('greetings', b'hello'); p.flush()"{probes}

Ctrl+C stops it; a second Ctrl+C at once."""


def _raise_descriptor_limit(log: logs.Logger) -> None:
    """Connections and segments are descriptors; shells allow far fewer of them than the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("descriptor limit stays low", soft=soft, hard=hard, reason=error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        from uvloop import new_event_loop
    except ImportError:  # no build for this platform: slower, otherwise the same
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory


def _given_flags(given_words: Mapping[str, str | None], assignments: Sequence[str]) -> dict[str, Given]:
    given = read_assignments(list(assignments), "--set")
    for flag, key in _FLAGS.items():
        value = given_words[flag[2:].replace("-", "_")]
        if value is not None:
            if key in given and key.startswith(SHORT_PREFIX):
                raise ConfigError(
                    f"{key} is given twice, by --set as {given[key].value} and by {flag} as {value}; keep one"
                )
            given[key] = Given(value, f"flag {flag}")
    return given
