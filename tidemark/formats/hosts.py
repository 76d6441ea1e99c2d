"""Host addresses as stored in a record (docs/formats.md, section 2.4). Pure.

A host is 4 or 16 address bytes in network order, then the port as a 4-byte signed integer. The kind
of address is stored elsewhere: in two bits of SYSFLAG for a record, in the length for a message id.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from typing import Final, NamedTuple

V4_SIZE: Final = 8
V6_SIZE: Final = 20

_PORT: Final = struct.Struct(">i")


class Host(NamedTuple):
    """An address and a port, as bytes and number; names are not resolved."""

    address: bytes
    """4 (IPv4) or 16 (IPv6) bytes in network order."""
    port: int
    """Any i32 when read from a record; 0…65535 when parsed from text."""

    @property
    def is_v6(self) -> bool:
        """Whether the address has 16 bytes. A mapped IPv4 address is an IPv6 one."""
        return len(self.address) == 16

    @property
    def text(self) -> str:
        """``10.0.0.1:80`` or ``[2001:db8::1]:80``."""
        address = ipaddress.ip_address(self.address)
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"


@functools.lru_cache(maxsize=64)
def encode(host: Host) -> bytes:
    """Encode to 8 or 20 bytes; cached, because answers name few hosts.

    Raises ValueError if the address or the port does not fit.
    """
    if len(host.address) not in (4, 16):
        raise ValueError(f"an address has 4 or 16 bytes, not {len(host.address)}")
    try:
        return host.address + _PORT.pack(host.port)
    except struct.error:
        raise ValueError(f"port {host.port} does not fit into 4 bytes") from None


def decode(view: bytes | bytearray | memoryview, *, v6: bool) -> Host:
    """Decode the host at view[0]. Raises ValueError if view is shorter than 8 (v6: 20) bytes."""
    size = V6_SIZE if v6 else V4_SIZE
    if len(view) < size:
        raise ValueError(f"a host needs {size} bytes, there are {len(view)}")
    return Host(bytes(view[: size - 4]), _PORT.unpack_from(view, size - 4)[0])


def parse(text: str) -> Host:
    """Parse ``address:port``; IPv6 in brackets. Raises ValueError; names are not resolved."""
    address_text, colon, port_text = text.rpartition(":")
    if not colon or not (port_text.isascii() and port_text.isdecimal()) or len(port_text) > 5:
        raise ValueError(f"{text!r} is not address:port")
    port = int(port_text)
    if port > 65_535:
        raise ValueError(f"{text!r}: a port is at most 65535")
    bracketed = address_text.startswith("[") and address_text.endswith("]")
    # A zone ("%eth0") names an interface of one machine; sixteen stored bytes cannot hold it.
    if "%" in address_text:
        raise ValueError(f"{text!r}: an address with a zone cannot be stored")
    address = ipaddress.ip_address(address_text[1:-1] if bracketed else address_text)
    if bracketed != (address.version == 6):
        raise ValueError(f"{text!r}: brackets belong around an IPv6 address, and only there")
    return Host(address.packed, port)
