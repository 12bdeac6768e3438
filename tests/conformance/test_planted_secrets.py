"""Passwords, API keys and the sealing key of a broker at work are seen nowhere: not in its logs at their most
talkative, not in what it answers, on its disk, in what commands print, or in the list of processes.
"""

import base64
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from tests.peers import penstock

from .conftest import PEER

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its secrets are ours")

MARK = "Planted7f3aXq9"
ADMIN, BILLING, WRONG = f"{MARK}-of-admin", f"{MARK}-of-billing", f"{MARK}-of-nobody"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CALL_S = 20.0
_SETTINGS = """\
listeners:
- {{name: secure, protocol: kafka, address: "127.0.0.1:0", auth: [scram, plain]}}
- {{name: web, protocol: http, address: "127.0.0.1:0", auth: [basic, key]}}
logging: {{level: debug}}
security: {{admin_password_file: {password}, seal_key_file: {sealing}}}
"""


class Secrets:
    """What must not be seen, in each form that it may take."""

    def __init__(self) -> None:
        self._forms: dict[bytes, str] = {}
        self.add("a password", MARK)

    def add(self, what: str, secret: str) -> None:
        said = secret.encode()
        self._forms[said] = what
        self._forms[said.hex().encode()] = f"{what}, hexadecimal"
        for shift in range(3):  # as the middle of what is encoded, wherever that begins
            coded = base64.b64encode(b"\0" * shift + said)
            self._forms[coded[4 if shift else 0 : -4]] = f"{what}, base64"

    def in_(self, where: str, said: str | bytes) -> list[str]:
        text = said.encode() if isinstance(said, str) else said
        return [f"{what} in {where}" for form, what in self._forms.items() if form in text]


class Watch:
    """What any user of the machine sees of its processes, looked at again and again."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.seen.add(process.read_bytes())
            if self._is_over.wait(0.02):
                return


class Scene:
    """A broker, and those who talk to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[tuple[str, str | bytes]] = []
        """What was printed or answered, and where."""
        password = self.secret_file("admin.password", ADMIN)
        settings = _SETTINGS.format(password=password, sealing=directory / "sealing.key")
        self.broker = penstock.start(directory / "broker", settings=settings)
        ready = (directory / "broker" / "penstock.stdout").read_text()
        addresses = dict(re.findall(r"\b(\w+)=(\S+)", ready))
        self.kafka, self.web = addresses["secure"], addresses["web"]

    def secret_file(self, name: str, secret: str) -> Path:
        path = self.directory / name
        path.write_text(secret)
        path.chmod(0o600)
        return path

    def librdkafka(self, user: str, password: str, mechanism: str) -> dict[str, str | int | float | bool]:
        return {
            "bootstrap.servers": self.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def command(self, *words: str, password: Path | None = None, fails: bool = False) -> str:
        """What a command has printed."""
        given = []
        if password is not None:
            login = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "admin",
                "sasl.password.file": str(password),
            }
            given = [
                "--server",
                self.kafka,
                *(each for key, value in login.items() for each in ("-X", f"{key}={value}")),
            ]
        done = subprocess.run(
            [*penstock.command(), *words, *given],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HOME": str(self.directory), "PENSTOCK_CONFIG": ""},
        )
        assert bool(done.returncode) == fails, done.stderr
        self.said.append((f"{' '.join(words[:2])}: standard error", done.stderr))
        return done.stdout

    def tell(self, *words: str, password: Path, fails: bool = False) -> None:
        self.said.append((" ".join(words[:2]), self.command(*words, password=password, fails=fails)))

    def ask_web(self, **said: str | tuple[str, str]) -> set[int]:
        headers = {name: value for name, value in said.items() if isinstance(value, str)}
        auth = next((value for value in said.values() if isinstance(value, tuple)), None)
        codes = set()
        with httpx.Client(base_url=f"http://{self.web}", trust_env=False, headers=headers, auth=auth) as client:
            for path in ("/", "/health", "/health/ready", "/metrics", f"/{MARK.lower()}"):
                answer = client.get(path)
                self.said.append((f"GET {path}", answer.text + repr(answer.headers)))
                codes.add(answer.status_code)
        return codes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.broker.stop()


def log_in(scene: Scene, user: str, password: str, mechanism: str) -> bool:
    told: list[str] = []
    client = Producer(
        {**scene.librdkafka(user, password, mechanism), "error_cb": lambda error: told.append(error.str())}
    )
    try:
        client.list_topics(timeout=2.0)
    except KafkaException as error:
        client.poll(0)
        scene.said.append((f"{mechanism} of {user}", f"{error} {told}"))
        return False
    return True


def describe_everything(scene: Scene) -> None:
    admin = AdminClient(scene.librdkafka("admin", ADMIN, "SCRAM-SHA-512"))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    for configs in admin.describe_configs([resource]).values():
        shown = {name: (entry.value, str(entry.synonyms)) for name, entry in configs.result(CALL_S).items()}
        scene.said.append(("DescribeConfigs", repr(shown)))
    users = admin.describe_user_scram_credentials()
    scene.said.append(("DescribeUserScramCredentials", repr(vars_of(users.result(CALL_S)))))  # type: ignore[union-attr]
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    scene.said.append(("DescribeAcls", repr(admin.describe_acls(everything).result(CALL_S))))
    scene.said.append(("DescribeCluster", repr(vars(admin.describe_cluster().result(CALL_S)))))


def vars_of(users: Mapping[str, object]) -> dict[str, dict[str, object]]:
    return {name: {key: repr(value) for key, value in vars(user).items()} for name, user in users.items()}


def ask_until_logged(scene: Scene, authorization: str) -> None:
    """Of what anybody can cause, the log has one line a second."""

    def lines() -> int:
        return scene.broker.log.read_text().count("login failed")

    before, deadline = lines(), time.monotonic() + CALL_S
    while lines() == before:
        assert time.monotonic() < deadline, "it is never logged"
        assert 401 in scene.ask_web(authorization=authorization)


NONSENSE = (
    (b"PLAIN", f"billing\0{WRONG}".encode()),
    (b"PLAIN", f"other\0billing\0{WRONG}".encode()),
    (b"PLAIN", f"\0billing\0{WRONG}\0{WRONG}".encode()),
    (b"PLAIN", b"\0billing\0\xff" + WRONG.encode()),
    (b"SCRAM-SHA-256", f"n,,p={WRONG}".encode()),
    (b"SCRAM-SHA-256", f"n,,n=billing,r=x,{WRONG}".encode()),
)
"""Logins that are none, with a password in the wrong place."""


def say_nonsense(scene: Scene, mechanism: bytes, said: bytes) -> None:
    host, _, port = scene.kafka.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(frame(17, 1, struct.pack(">h", len(mechanism)) + mechanism))
        client.sendall(frame(36, 1, struct.pack(">i", len(said)) + said))
        while got := client.recv(4096):
            scene.said.append((f"a login by {said!r:.20}", got))


def frame(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api, version, 1, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def test_secrets_are_seen_nowhere(scene: Scene) -> None:
    secrets, admin = Secrets(), scene.directory / "admin.password"
    billing = scene.secret_file("billing.password", BILLING)
    wrong = scene.secret_file("wrong.password", WRONG)
    with Watch() as watch:
        scene.tell("user", "create", "billing", "--password-file", str(billing), password=admin)
        scene.tell("user", "passwd", "billing", "--password-file", str(billing), password=admin)
        scene.tell("user", "create", "billing", "--password-file", str(wrong), password=admin, fails=True)
        scene.tell("user", "list", password=wrong, fails=True)
        keys = []
        for more in ((), ("--signing",)):
            made = scene.command(
                "apikey", "create", "--for", "admin", "--expires", "1d", *more, "-o", "json", password=admin
            )
            (key,) = re.findall(r"pk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", made)
            secrets.add("an API key", key[20:])
            keys.append(key)
        scene.tell("apikey", "list", "-o", "json", password=admin)
        scene.tell("user", "list", "-o", "json", password=admin)
        scene.tell("role", "list", "-o", "json", password=admin)
        scene.tell("acl", "list", "-o", "json", password=admin)
        scene.tell("security", "rotate-key", password=admin)
        assert all(log_in(scene, "billing", BILLING, mechanism) for mechanism in MECHANISMS)
        with ThreadPoolExecutor() as pool:
            bad_logins = [(user, mechanism) for user in ("billing", "nobody") for mechanism in MECHANISMS]
            assert not any(pool.map(lambda bad: log_in(scene, bad[0], WRONG, bad[1]), bad_logins))
            list(pool.map(lambda bad: say_nonsense(scene, *bad), NONSENSE))
        describe_everything(scene)
        for key in keys:
            assert 200 in scene.ask_web(authorization=f"Bearer {key}")
        assert 200 in scene.ask_web(auth=("admin", ADMIN))
        for bad in (keys[0], f"Bearer {keys[0]}x", MARK, f"Bearer {WRONG}", f"Digest {WRONG}", f"Basic {WRONG}"):
            ask_until_logged(scene, bad)
        assert 401 in scene.ask_web(auth=("billing", WRONG))
        shown = scene.command("config", "show", "--config", str(scene.directory / "broker" / "penstock.yaml"))
        scene.said.append(("config show", shown))
    sealing = re.search(r"[0-9a-f]{64}", (scene.directory / "sealing.key").read_text())
    assert sealing is not None
    secrets.add("the sealing key", sealing[0])
    secrets.add("the sealing key's bytes", bytes.fromhex(sealing[0]).decode("latin-1"))
    assert scene.broker.stop() == 0

    log = (scene.directory / "broker" / "penstock.log").read_text()
    assert "authentication failed" in log and "login failed" in log
    assert any(b"serve" in line for line in watch.seen) and any(b"apikey" in line for line in watch.seen)
    found = [
        *secrets.in_("the log", log),
        *(each for line in watch.seen for each in secrets.in_("the list of processes", line)),
        *(each for where, said in scene.said for each in secrets.in_(where, said)),
    ]
    for path in (scene.directory / "broker").rglob("*"):
        if path.is_file():
            found += secrets.in_(str(path), path.read_bytes())
    assert not found, json.dumps(sorted(set(found)), indent=1)


def test_a_secret_that_is_said_is_found() -> None:
    """By the test above, in whatever form."""
    secrets = Secrets()
    admin = ADMIN.encode()
    coded = [base64.b64encode(b"x" * before + admin) for before in range(3)]
    for said in (admin, admin.hex().encode(), *coded):
        assert secrets.in_("here", b"<" + said + b">")
    assert not secrets.in_("here", "nothing")
