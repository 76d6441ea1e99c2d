"""Describes errors of network connections in words that a person understands."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

ERROR_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ")


def describe(error: Exception) -> str:
    """Return a readable reason why a connection broke or could not be made."""
    match error:
        case ConnectionRefusedError():
            return "nothing accepts connections at its address"
        case socket.gaierror():
            return f"its host name has no address ({error.strerror})"
        case ssl.SSLCertVerificationError():
            why = getattr(error, "verify_message", None) or "it does not fit the node"
            return f"its certificate is not accepted ({why})"
        case ssl.SSLError():
            # Only errors of OpenSSL's own have a reason.
            return f"TLS failed ({getattr(error, 'reason', None) or 'the connection was closed'})"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()  # the message names calls of a library
        case _:
            # A name with several addresses: one message holds what each of them answered.
            text = ERROR_NUMBER.sub("", str(error).removeprefix("Multiple exceptions: "))
            return text or type(error).__name__
