"""Rules about secrets and peers, which no linter has: `python scripts/secure_code.py` names what breaks them.

compare      secrets are compared by `hmac.compare_digest`, or as `Secret`, never by == or `in`
tell         no secret in a line of the log, in what is printed, or in the text of an error
unverified   no certificate that nobody checks, no TLS older than 1.2
yaml         no YAML that makes objects
shell        no shell
code         nothing from outside becomes code: no pickle, marshal, eval, exec

A thing is a secret by its name. `Secret` shows itself to nobody, so that it may be told; what it reveals may not.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_ROOMS = ("src",)
_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|salted|stored_key|server_key|client_key|private_key|seal_key|digest|proof"
    r"|signature|api_key|auth_bytes|credential|token|authorization|jaas)s?$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"^(has|is|no|needs|wants)_|(_|^)(file|path|name|id|kind|type|len|size|count|bytes_size)$", re.IGNORECASE
)
_TELLS = {"debug", "info", "warning", "error", "critical", "exception", "echo", "secho", "print", "warn", "write_line"}
_LOGGERS = re.compile(r"^(_?log_?|_?logger|logging|click|warnings|console|_console)$")
_OLD_TLS = {"PROTOCOL_SSLv2", "PROTOCOL_SSLv3", "PROTOCOL_TLSv1", "PROTOCOL_TLSv1_1", "TLSv1", "TLSv1_1", "SSLv3"}
_BAD_LOADERS = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader"}
_CODE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
_SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}

ALLOWED: dict[tuple[str, str], str] = {
    ("src/penstock/client/tls.py", "unverified"): "whoever uses the client says so, as Kafka's clients let them",
    ("src/penstock/cluster/membership.py", "compare"): "names a start of this process, and opens nothing",
    ("src/penstock/cluster/metadata/etcd_endpoints.py", "compare"): "our own, beside the one that it was",
    ("src/penstock/engine/coordination/shard.py", "compare"): "a number of whom an answer is for",
    ("src/penstock/storage/compaction/offset_map.py", "compare"): "of a record's key, and nobody waits for the answer",
    ("src/penstock/spark/setup/warm.py", "code"): "reads the bytecode that this very Python wrote",
}
"""By file and rule, and why. One that is not needed any more is named, too."""


class Breach(NamedTuple):
    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


def breaches_of(source: str, file: str) -> Iterator[Breach]:
    for node in ast.walk(ast.parse(source)):
        for rule, text in _of(node):
            yield Breach(file, getattr(node, "lineno", 0), rule, text)


def _of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare):
        yield from _compared(node)
    elif isinstance(node, ast.Call):
        yield from _called(node)
    elif isinstance(node, ast.Raise) and node.exc is not None:
        for name in _told([node.exc]):
            yield "tell", f"an error's text has {name}"
    elif isinstance(node, ast.Attribute) and (node.attr == "CERT_NONE" or node.attr in _OLD_TLS):
        yield "unverified", node.attr
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from _assigned(node)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        yield from (("code", f"import {name}") for name in names if name.partition(".")[0] in _CODE_MODULES)


def _compared(node: ast.Compare) -> Iterator[tuple[str, str]]:
    sides = [node.left, *node.comparators]
    if any(_is_plain(side) for side in sides):
        return
    for operator in node.ops:
        if isinstance(operator, ast.Eq | ast.NotEq):
            yield from (("compare", f"{name} by {type(operator).__name__}") for name in map(_secret, sides) if name)


def _is_plain(side: ast.expr) -> bool:
    """A constant, the member of an enumeration, or what else nobody can guess anything from."""
    if isinstance(side, ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict):
        return True
    return isinstance(side, ast.Attribute | ast.Name) and _last_word(side).isupper()


def _called(node: ast.Call) -> Iterator[tuple[str, str]]:
    name, owner = _last_word(node.func), _owner(node.func)
    told = [*node.args, *(each.value for each in node.keywords)]
    if name in _TELLS and (_LOGGERS.match(owner) or name in ("print", "echo") or "limited" in ast.dump(node.func)):
        yield from (("tell", f"{name}() is given {secret}") for secret in _told(told, within_text=False))
    if (owner, name) in _SHELLS:
        yield "shell", f"{owner}.{name}"
    if name in ("eval", "exec", "compile") and not owner and isinstance(node.func, ast.Name):
        yield "code", f"{name}()"
    if name in ("_create_unverified_context", "_create_stdlib_context"):
        yield "unverified", name
    for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg == "shell" and not is_false:
            yield "shell", "shell="
        if keyword.arg in ("verify", "check_hostname") and is_false:
            yield "unverified", f"{keyword.arg}=False"
    if owner == "yaml":
        loaders = [_last_word(each) for each in told[1:]]
        if name in ("unsafe_load", "unsafe_load_all", "full_load", "full_load_all"):
            yield "yaml", name
        if name in ("load", "load_all") and (not loaders or (_is_yamls(told[1]) and loaders[0] in _BAD_LOADERS)):
            yield "yaml", f"yaml.{name} without a loader that makes plain things alone"


def _is_yamls(loader: ast.expr) -> bool:
    return isinstance(loader, ast.Attribute) and _owner(loader) == "yaml"


def _assigned(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    is_false = isinstance(node.value, ast.Constant) and node.value.value is False
    if is_false and any(_last_word(target) == "check_hostname" for target in targets):
        yield "unverified", "check_hostname = False"


def _told(values: Sequence[ast.expr], *, within_text: bool = True) -> Iterator[str]:
    """Secrets that become text: in f-strings, by % or format; else also those given as they are."""
    for value in values:
        for node in ast.walk(value):
            if isinstance(node, ast.FormattedValue) and (name := _secret(node.value)):
                yield name
        if not within_text and (name := _secret(value)):
            yield name


def _secret(node: ast.expr) -> str:
    """Its name, if it is one by its name; what is revealed is one."""
    if isinstance(node, ast.Call):
        is_revealed = isinstance(node.func, ast.Attribute) and node.func.attr in ("reveal", "decode", "hex", "strip")
        if is_revealed and isinstance(node.func, ast.Attribute):
            return _secret(node.func.value) or (ast.unparse(node) if node.func.attr == "reveal" else "")
        return ""
    word = _last_word(node)
    return ast.unparse(node) if _SECRET.search(word) and not _NO_SECRET.search(word) and not word.isupper() else ""


def _last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _owner(node: ast.expr) -> str:
    if not isinstance(node, ast.Attribute):
        return ""
    return _last_word(node.value)


def main() -> int:
    found: list[Breach] = []
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*.py")):
            found += breaches_of(path.read_text(), path.relative_to(_ROOT).as_posix())
    used = {(each.file, each.rule) for each in found} & set(ALLOWED)
    told = [str(each) for each in found if (each.file, each.rule) not in ALLOWED]
    told += [f"{file}: {rule}: allowed in scripts/secure_code.py, and not needed" for file, rule in set(ALLOWED) - used]
    print("\n".join(told), end="\n" if told else "")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
