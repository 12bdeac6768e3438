"""What brokers show each other, as it is looked at before a broker starts."""

from pathlib import Path

import pytest
from tests.unit.net.certificates import BROKER, Authority

from penstock.errors import WrongSettings
from penstock.protocols.internal.broker_certificate import check_files


@pytest.fixture
def brokers(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "brokers")


@pytest.fixture
def clients(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "clients")


def test_brokers_and_clients_have_an_authority_each(brokers: Authority, clients: Authority, tmp_path: Path) -> None:
    """By what is in the files: copies, bundles, and what was made anew of the same key."""
    shown = brokers.sign("broker", BROKER).certificate
    check_files(shown, brokers.certificate, {"listeners.kafka": clients.certificate})
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(Path(clients.certificate).read_bytes() + Path(brokers.certificate).read_bytes())
    below = brokers.sign("below").certificate
    for theirs in (brokers.certificate, str(bundle), brokers.renew("later"), below):
        told = (
            rf"listeners\.kafka trusts clients by {theirs}, and brokers .* {brokers.certificate} .*'penstock tls init"
        )
        with pytest.raises(WrongSettings, match=told):
            check_files(shown, brokers.certificate, {"listener other": clients.certificate, "listeners.kafka": theirs})


@pytest.mark.parametrize("names", ["DNS:localhost", "DNS:localhost,URI:penstock:other", "DNS:penstock.broker"])
def test_a_certificate_that_other_brokers_would_not_take(brokers: Authority, names: str) -> None:
    shown = brokers.sign("broker", names).certificate
    with pytest.raises(WrongSettings, match=rf"{shown} .* does not name a broker.*URI penstock:broker.*--broker"):
        check_files(shown, brokers.certificate, {})


def test_files_that_are_none(brokers: Authority, tmp_path: Path) -> None:
    shown = brokers.sign("broker", BROKER).certificate
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    with pytest.raises(WrongSettings, match=r"broken\.pem cannot be used"):
        check_files(shown, brokers.certificate, {"listeners.kafka": str(broken)})
    with pytest.raises(WrongSettings, match=r"cannot read .*nothing\.pem"):
        check_files(shown, str(tmp_path / "nothing.pem"), {})
