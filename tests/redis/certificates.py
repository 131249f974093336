"""An authority of our own, and what it signs: for a server at 127.0.0.1, for clients, and a stranger's."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RULES: Final = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = IP:127.0.0.1, DNS:localhost
"""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Certificates:
    """Signed in a folder: `authority`, `server`, `client`, and `stranger`, an authority that signed none of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (folder / "rules").write_text(_RULES)
        self.authority = self._make("authority", None)
        self.stranger = self._make("stranger", None)
        self.server = self._make("server", self.authority)
        self.client = self._make("client", self.authority)

    def context(self) -> ssl.SSLContext:
        """What a client needs that shows its certificate."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(self.client.certificate, self.client.key)
        return context

    def _make(self, name: str, signer: Pair | None) -> Pair:
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        signed: list[str | Path] = ["-CA", signer.certificate, "-CAkey", signer.key] if signer else []
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-config", self._folder / "rules", "-extensions", "leaf" if signer else "authority"),
                *("-out", pair.certificate, "-keyout", pair.key),
                *signed,
            ],
            check=True,
            capture_output=True,
        )
        return pair
