"""A certificate of ours that ends while the broker runs: its log names the file."""

import time
from pathlib import Path

import pytest

from penstock.net.certificates import Certificates, KeyPair, TlsSettings

from .certificates import Authority
from .test_certificates import revoke


class Later:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms


async def test_the_log_names_the_file_that_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = Authority.make(tmp_path / "ca").sign("broker", days=2), Later()
    certificates = Certificates(TlsSettings(KeyPair(files.certificate, files.key)), clock)  # type: ignore[arg-type]

    def said() -> list[dict[str, object]]:
        return [vars(record) for record in caplog.records if "has ended" in record.getMessage()]

    await certificates.look()
    assert said() == []
    clock.ahead_ms = 3 * 86_400_000
    for _ in range(3):  # it looks often, and says it once in a while
        await certificates.look()
    (told,) = said()
    assert files.certificate in str(told)


async def test_the_log_names_a_list_of_revoked_certificates_that_was_to_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, clock = Authority.make(tmp_path / "ca"), Later()
    files, revoked = authority.sign("broker", days=9), revoke(authority, tmp_path / "crl.pem")
    settings = TlsSettings(KeyPair(files.certificate, files.key), authority=files.authority, revoked=revoked)
    certificates = Certificates(settings, clock)  # type: ignore[arg-type]

    def said() -> list[dict[str, object]]:
        return [vars(record) for record in caplog.records if "was to be replaced" in record.getMessage()]

    await certificates.look()
    assert said() == []
    clock.ahead_ms = 2 * 86_400_000
    for _ in range(3):
        await certificates.look()
    (told,) = said()
    assert revoked in str(told)
