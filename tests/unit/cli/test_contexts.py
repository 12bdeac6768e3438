"""The file of contexts, and `penstock context` that keeps it."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.contexts import Contexts
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.client.contexts import Context

Penstock = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file() -> Path:
    return Path(os.environ["HOME"]) / ".penstock" / "config.yaml"


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Penstock:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return (code, *capsys.readouterr())

    return call


def write(file: Path, text: str | bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_no_file_is_an_empty_one(penstock: Penstock) -> None:
    contexts = Contexts.load(os.environ)
    assert (contexts.current, contexts.by_name) == (None, {})
    assert penstock("context", "list", "-o", "json") == (0, "[]\n", "")


def test_what_is_saved_is_loaded(file: Path) -> None:
    before = Contexts.load(os.environ)
    before.current = "près"
    before.by_name["près"] = Context("a:1,b:2", {"sasl.password": "{tricky: [1"})
    before.by_name["on"] = Context("c:3")  # YAML would read a bare `on` as true
    before.save()
    after = Contexts.load(os.environ)
    assert (after.path, after.current, after.by_name) == (file, before.current, before.by_name)


def test_the_file_is_for_its_owner_alone(file: Path) -> None:
    Contexts(file, by_name={"a": Context("a:1", {"sasl.password": "secret"})}).save()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    Contexts.load(os.environ).save()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_save_that_fails_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Contexts(file, by_name={"a": Context("a:1")}).save()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        Contexts(file, by_name={"b": Context("b:1")}).save()
    assert list(Contexts.load(os.environ).by_name) == ["a"]
    assert os.listdir(file.parent) == ["config.yaml"]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "penstock.yaml"
    write(file, "")
    file.unlink()
    file.symlink_to(real)
    Contexts(file, by_name={"a": Context("a:1")}).save()
    assert file.is_symlink()
    assert "a:1" in real.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("contexts: {a: [", "line 1: this is no YAML"),
        ("contexts:\n  a:\n    properties: {sasl.password: 'hunter2\n", "is no YAML"),
        ("- a\n- b\n", "expected the keys current and contexts"),
        ("servers: {}\n", "expected the keys current and contexts"),
        ("contexts: {a: 1}\n", "context 'a' has no server; expected server: HOST:PORT"),
        ("contexts: {a: {properties: {sasl.password: hunter2}}}\n", "context 'a' has no server"),
        ("contexts: {a: {server: x, properties: 3}}\n", "context 'a' has no server"),
        ("contexts: [a]\n", "expected server: HOST:PORT"),
        (b"contexts: {\xff: 1}\n", "it is not UTF-8"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(
    file: Path, penstock: Penstock, text: str | bytes, told: str
) -> None:
    write(file, text)
    for words in (["context", "list"], ["topic", "list"]):
        code, out, err = penstock(*words)
        assert (code, out) == (2, "")
        assert str(file) in err
        assert told in err
        assert "hunter2" not in err
        assert err.count("\n") == 1


def test_what_looks_like_a_number_stays_a_password(file: Path) -> None:
    write(file, "current: 7\ncontexts: {7: {server: a:1, properties: {sasl.password: 0123, sasl.username: null}}}\n")
    contexts = Contexts.load(os.environ)
    assert contexts.by_name[contexts.current or ""].properties == {"sasl.password": "0123", "sasl.username": "null"}


def test_a_file_that_cannot_be_read(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(CommandError, match=r"cannot read .*config\.yaml: Is a directory"):
        Contexts.load(os.environ)


def test_the_life_of_contexts(penstock: Penstock, file: Path) -> None:
    told = "no contexts; 'penstock context add NAME --server HOST:PORT' adds one\n"
    assert penstock("context", "list") == (0, "", told)
    assert penstock("context", "list", "-o", "json") == (0, "[]\n", "")
    assert penstock("context", "add", "here", "--server", "127.0.0.1:9092") == (
        0,
        "",
        f"context here is 127.0.0.1:9092, in {file}\n",
    )
    penstock(
        *("context", "add", "there", "--server", "a:1,b:2"),
        *("-X", "security.protocol=SSL", "-X", "sasl.password.file=pw"),
    )
    assert penstock("context", "use", "there")[0] == 0
    code, out, _ = penstock("context", "list")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "SERVER", "PROPERTIES"],
        ["here", "127.0.0.1:9092", "-"],
        ["*", "there", "a:1,b:2", "sasl.password.file,", "security.protocol"],
    ]
    assert "pw" not in out
    listed = json.loads(penstock("context", "list", "-o", "json")[1])
    assert [(each["name"], each["current"]) for each in listed] == [("here", False), ("there", True)]
    assert "pw" not in str(listed)
    assert penstock("context", "remove", "there")[0] == 0
    assert Contexts.load(os.environ).current is None


def test_the_first_one_becomes_current(penstock: Penstock) -> None:
    penstock("context", "add", "a", "--server", "a:1")
    penstock("context", "add", "b", "--server", "b:1")
    assert Contexts.load(os.environ).current == "a"


@pytest.mark.parametrize("words", [["use", "c"], ["remove", "c"]])
def test_an_unknown_one_is_answered_with_the_known(penstock: Penstock, words: list[str]) -> None:
    code, _, err = penstock("context", *words)
    assert (code, "there is none yet" in err) == (2, True)
    penstock("context", "add", "b", "--server", "b:1")
    penstock("context", "add", "a", "--server", "a:1")
    code, _, err = penstock("context", *words)
    assert (code, "context 'c' is unknown; known: a, b." in err) == (2, True)


def test_words_that_are_no_property_change_nothing(penstock: Penstock, file: Path) -> None:
    assert penstock("context", "add", "a", "--server", "a:1", "-X", "oops")[0] == 2
    assert not file.exists()
