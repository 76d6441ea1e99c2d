"""Makes the imports of a service cheaper: its program calls ``begin`` before most of them.

- The garbage collector is off until ``end``: nothing that is imported is garbage, and each
  collection would traverse all of it. Afterwards the collector leaves it alone.
- No certificates are read. aiohttp creates a TLS context for its clients when it is imported, with
  all authorities that the system trusts. This is not for a service that makes TLS connections with
  aiohttp's client, as ha does.
"""

from __future__ import annotations

import gc
import os
from typing import Final

_CERTIFICATES: Final = "SSL_CERT_FILE"
"""Environment variable with the path of OpenSSL's file of trusted certificates."""


def begin() -> None:
    """Turn the collector off, and let OpenSSL find no trusted authorities."""
    gc.disable()
    os.environ.setdefault(_CERTIFICATES, os.devnull)


def end() -> None:
    """Let the collector run, for objects that are created from now on; restore the environment."""
    if os.environ.get(_CERTIFICATES) == os.devnull:
        del os.environ[_CERTIFICATES]
    gc.freeze()
    gc.enable()
