"""The imports of a service cost no collections and no certificates; afterwards cycles are found."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import pytest

from shared.runtime import quick_start

SEEN = """
import atexit, gc, json, runpy, ssl, sys
read = ssl.SSLContext.load_default_certs
authorities = []

def noted(context, *given):
    read(context, *given)
    authorities.append(context.cert_store_stats()["x509_ca"])

ssl.SSLContext.load_default_certs = noted
sys.argv[1:] = ["--check-config"]
before = sum(each["collections"] for each in gc.get_stats())
try:
    runpy.run_module("services.{service}", run_name="__main__")
except SystemExit:
    after = sum(each["collections"] for each in gc.get_stats())
print()
print(json.dumps([authorities, after - before, gc.isenabled(), gc.get_freeze_count() > 10_000]))
"""


@pytest.mark.parametrize("service", ["broker", "reput"])
def test_a_service_imports_without_collections_and_authorities(service: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    run = subprocess.run(
        [sys.executable, "-c", SEEN.format(service=service)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    authorities, collections, is_enabled, is_frozen = json.loads(run.stdout.splitlines()[-1])
    assert set(authorities) == {0}
    assert collections < 20, "the collector ran while modules were imported: more than 100 times"
    assert is_enabled
    assert is_frozen


@pytest.mark.parametrize("own", [None, "/etc/own.pem"])
def test_the_environment_of_an_operator_is_the_same_afterwards(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if own is not None:
        monkeypatch.setenv("SSL_CERT_FILE", own)
    monkeypatch.setattr(gc, "disable", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    quick_start.begin()
    assert os.environ["SSL_CERT_FILE"] == (own or os.devnull)
    quick_start.end()
    assert os.environ.get("SSL_CERT_FILE") == own
