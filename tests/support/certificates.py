"""Certificates for tests, made by the ``openssl`` command: an authority, and what it signs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """PEM files of one node."""

    certificate: Path
    key: Path
    authority: Path

    def settings(self) -> dict[str, object]:
        """Return the files as settings of ``[cluster]``."""
        return {
            "tls_cert_file": str(self.certificate),
            "tls_key_file": str(self.key),
            "tls_ca_file": str(self.authority),
        }


def make(directory: Path, name: str, *, address: str = "") -> Certificate:
    """An authority called ``name`` in directory, and a certificate that it signed; with address,
    for a server at that IP address."""
    if shutil.which("openssl") is None:
        reason = "openssl is not installed: apt-get install openssl"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    made = Certificate(*(directory / f"{name}-{part}.pem" for part in ("node", "key", "ca")))
    ca_key, request = directory / f"{name}-ca-key.pem", directory / f"{name}-request.pem"
    extensions: tuple[object, ...] = ()
    if address:
        names = directory / f"{name}-names.cnf"
        names.write_text(f"subjectAltName = IP:{address}\n")
        extensions = ("-extfile", names)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for command in (
        (
            "req",
            "-x509",
            *new_key,
            "-keyout",
            ca_key,
            "-out",
            made.authority,
            "-subj",
            f"/CN={name}",
        ),
        ("req", *new_key, "-keyout", made.key, "-out", request, "-subj", "/CN=tidemark"),
        (
            *("x509", "-req", "-in", request, "-CA", made.authority, "-CAkey", ca_key),
            *("-CAcreateserial", "-days", "2", "-out", made.certificate, *extensions),
        ),
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return made
