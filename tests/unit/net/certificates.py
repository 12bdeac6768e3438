"""Certificate authorities and what they sign, made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.net.tls import TlsFiles

BROKER = "IP:127.0.0.1,DNS:localhost,URI:penstock:broker"
"""What the certificate of a broker on this machine names."""
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Authority:
    directory: Path

    @classmethod
    def make(cls, directory: Path) -> "Authority":
        directory.mkdir()
        made = cls(directory)
        _openssl("req", "-x509", *_EC, "-keyout", made._path("ca.key"), "-out", made.certificate, "-subj", "/CN=ca")
        return made

    def _path(self, name: str) -> str:
        return str(self.directory / name)

    @property
    def certificate(self) -> str:
        return self._path("ca.pem")

    def renew(self, name: str) -> str:
        """Another certificate of the same key."""
        path = self._path(f"{name}.pem")
        _openssl("req", "-x509", "-new", "-key", self._path("ca.key"), "-out", path, "-subj", "/CN=renewed")
        return path

    def sign(self, name: str, subject_names: str = "IP:127.0.0.1,DNS:localhost", *, days: int = 2) -> TlsFiles:
        """A certificate and its key; `days` below 0 is one that has ended."""
        certificate, key, request = (self._path(f"{name}.{kind}") for kind in ("pem", "key", "csr"))
        _openssl("req", *_EC, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        (self.directory / f"{name}.ext").write_text(f"subjectAltName={subject_names}\n")
        signer = ("-CA", self.certificate, "-CAkey", self._path("ca.key"), "-CAcreateserial")
        extensions = ("-extfile", self._path(f"{name}.ext"))
        _openssl("x509", "-req", "-in", request, "-out", certificate, "-days", str(days), *signer, *extensions)
        return TlsFiles(certificate, key, self.certificate)
