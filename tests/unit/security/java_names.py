"""`python -m tests.unit.security.java_names` asks Java and Kafka how they spell names, and writes down the answers.

Needs a JDK and kafka-clients (`scripts/jars` puts it into .cache); both are named in the file that is written.
"""

import json
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ANSWERS = HERE / "java_names.json"
JAR = HERE.parents[2] / ".cache" / "jars" / "kafka-4.3.1" / "kafka-clients-4.3.1.jar"
CN, C, L, ST, STREET, ORG, OU = (f"2.5.4.{last}" for last in (3, 6, 7, 8, 9, 10, 11))
EMAIL, UID, DC = "1.2.840.113549.1.9.1", "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
SERIAL, TITLE, SURNAME, GIVEN, LONG = "2.5.4.5", "2.5.4.12", "2.5.4.4", "2.5.4.42", "2.999.16383.1.128"
UTF8, NUMERIC, PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP = 12, 18, 19, 20, 22, 26, 27, 28, 30
INTEGER, OCTETS = 2, 4

Value = tuple[str, int, bytes]


def item(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82, size >> 8, size & 255])
    return bytes([tag]) + length + content


def number(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = b""
    for each in (40 * first + second, *rest):
        groups = [each & 127]
        while each := each >> 7:
            groups.append(each & 127 | 128)
        content += bytes(reversed(groups))
    return item(6, content)


def name(*parts: list[Value]) -> bytes:
    """DER of a name: each part is a set of attributes with their values."""
    sets = [
        item(0x31, b"".join(item(0x30, number(kind) + item(tag, value)) for kind, tag, value in part)) for part in parts
    ]
    return item(0x30, b"".join(sets))


def one(text: str | bytes, tag: int = UTF8, kind: str = CN) -> bytes:
    return name([(kind, tag, text.encode() if isinstance(text, str) else text)])


NAMES = [
    name([(C, PRINTABLE, b"DE")], [(ORG, UTF8, b"Acme, Inc")], [(OU, UTF8, b"Dev"), (CN, UTF8, b"x y")]),
    name([(C, PRINTABLE, b"DE")], [(ORG, UTF8, b"Acme, Inc")], [(CN, UTF8, b"x y"), (OU, UTF8, b"Dev")]),
    name([(DC, IA5, b"com")], [(DC, IA5, b"example")], [(UID, UTF8, b"u1")], [(CN, UTF8, b"n")]),
    name(
        [(C, PRINTABLE, b"US")],
        [(ST, UTF8, b"CA")],
        [(L, UTF8, b"SF")],
        [(STREET, UTF8, b"1 Main")],
        [(CN, UTF8, b"n")],
    ),
    name([(CN, UTF8, b"n")], [(EMAIL, IA5, b"a@b.c")]),
    name([(SERIAL, PRINTABLE, b"12")], [(TITLE, UTF8, b"Dr")], [(SURNAME, UTF8, b"S")], [(GIVEN, UTF8, b"G")]),
    name([(LONG, UTF8, b"far")], [(CN, UTF8, b"n")]),
    name(),
    *(one(text) for text in ("", " ", "  ", " a", "a ", "  a  b  ", "#a", "a#b", "a=b", 'a"b', "a\\b", "a<b>c;d,e+f")),
    *(
        one(text)
        for text in (
            "a\0b",
            "a\nb",
            "\ra",
            "a\r",
            "\r",
            "\ta",
            "é",
            "ß",
            "\u65e5\u672c",
            "\U0001f600",
            "e\u0301",
            "\u2028",
        )
    ),
    *(one(text) for text in ("*", "a/b", "User:a", "'", "a:b", "CN=a", "a,CN=b", "x" * 300, " #", "# ", "\\ ", ", ")),
    *(one(b"a", tag) for tag in (UTF8, PRINTABLE, T61, IA5, VISIBLE, GENERAL, NUMERIC, OCTETS, INTEGER)),
    *(one(b"\0a\0b", tag) for tag in (BMP, UNIVERSAL)),
    *(one("é".encode("latin-1"), tag) for tag in (T61, IA5, PRINTABLE, UTF8)),
    one("a_b@c*", PRINTABLE),
    one("a,b", PRINTABLE),
    *(one("v", UTF8, kind) for kind in (C, L, ST, STREET, ORG, OU, UID, DC, EMAIL, SERIAL)),
    one("", UTF8, EMAIL),
]
_DN = "CN=Alice,OU=Dev,O=Acme\\, Inc,C=DE"
RULES = [
    *(
        (rules, _DN)
        for rules in ("DEFAULT", " DEFAULT ", "DEFAULT,", ",DEFAULT", "default", "", "RULE:", "RULE:a", "RULE:a/b")
    ),
    *(
        (f"RULE:^CN=(.*?),OU=(.*?),.*$/{to}", _DN)
        for to in ("$1@$2/", "$1@$2/L", "$1@$2/U", "$2-$1/LU", "$1/X", "$3/", "$12/", "$0/")
    ),
    *(
        (f"RULE:^CN=(.*?),.*$/{to}", _DN)
        for to in ("$1\\/x/", "\\$1/", "a\\\\b/", "$/", "$10/", "$2/", "$1$1/", "/", "a,b/", " $1 /")
    ),
    ("RULE:^CN=(.*?),OU=Ops.*$/$1/L,RULE:^CN=(.*?),OU=Dev.*$/$1/U,DEFAULT", _DN),
    ("RULE:^CN=(.*?),OU=Ops.*$/$1/L , DEFAULT", _DN),
    ("RULE:^CN=(.*?),OU=Ops.*$/$1/L", _DN),
    ("RULE:CN=(.*?)/$1/", _DN),
    ("RULE:CN=Alice/$1/", _DN),
    ("RULE:.*/x/", _DN),
    ("RULE:.+/x/", _DN),
    ("RULE:.*/$1/", _DN),
    ("RULE:CN=(\\w+).*/$1/L DEFAULT", _DN),
    ("RULE:.*CN=(a|ab).*/$1/", "CN=ab"),
    ("RULE:CN=(a|ab)/$1/", "CN=ab"),
    ("RULE:CN=(.*)\\/(.*)/$2\\/$1/U", "CN=a/b"),
    ("RULE:CN=(x)?(.*)/$1$2/", "CN=a"),
    ("RULE:CN=(.*)/$1/L", "CN=\u00c4\u00d6\u00df\u0130"),
    ("RULE:CN=(.*)/$1/U", "CN=\u00e4\u00f6\u00df"),
    ("RULE:CN=([^,]*).*/$1/L,RULE:.*/other/", "O=x"),
]


def ask() -> dict[str, object]:
    """What Java and Kafka answer."""
    lines = [f"name {each.hex()}" for each in NAMES] + [f"rule {rules}\t{dn}" for rules, dn in RULES]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as asked:
        asked.write("\n".join(lines) + "\n")
        asked.flush()
        words = ["java", "-cp", f"{JAR}:{JAR.parent}/*", str(HERE / "JavaNames.java"), asked.name]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    version = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr.split('"')[1]
    answers = [
        bytes.fromhex(line[3:]).decode() if line.startswith("ok ") else None for line in done.stdout.splitlines()
    ]
    return {
        "renewed by": "python -m tests.unit.security.java_names",
        "java": version,
        "kafka": JAR.name,
        "names": [[each.hex(), said] for each, said in zip(NAMES, answers, strict=False)],
        "rules": [[*asked, said] for asked, said in zip(RULES, answers[len(NAMES) :], strict=True)],
    }


if __name__ == "__main__":
    ANSWERS.write_text(json.dumps(ask(), indent=1, ensure_ascii=True) + "\n")
