"""Names are spelled as Java spells them, whatever a certificate has in its subject."""

import json
import random
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.unit.net.certificates import Authority

from penstock.security.certificate_names import java_name, subject_of

from .java_names import ANSWERS, NAMES, one

NAMED = json.loads(ANSWERS.read_text())["names"]


@pytest.mark.parametrize(("name", "spelled"), NAMED)
def test_names_are_spelled_as_in_java(name: str, spelled: str) -> None:
    assert java_name(bytes.fromhex(name)) == spelled


def test_all_names_were_asked_for() -> None:
    assert [name for name, _ in NAMED] == [each.hex() for each in NAMES]


def test_the_subject_of_a_certificate(tmp_path: Path) -> None:
    files = Authority.make(tmp_path / "ours").sign("alice")
    for path, name in ((files.certificate, "CN=alice"), (files.authority, "CN=ca")):
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
        found = subject_of(certificate.public_bytes(Encoding.DER))
        assert found == certificate.subject.public_bytes()
        assert java_name(found) == name


def test_bytes_that_are_no_name_are_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    files = Authority.make(tmp_path / "ours").sign("alice")
    certificate = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
    der = certificate.public_bytes(Encoding.DER)
    chance, refused = random.Random(1), 0
    for source, read in ((der, subject_of), (NAMES[0], java_name), (one("a", 12), java_name)):
        for cut in range(min(len(source), 300)):
            with pytest.raises(ValueError):  # noqa: PT011 - any of them
                read(source[:cut])
        for _ in range(3000):
            changed = bytearray(source)
            for _ in range(chance.randint(1, 3)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            try:
                read(bytes(changed))
            except ValueError:
                refused += 1
    assert refused > 1000
