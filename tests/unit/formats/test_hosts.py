import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.for_each import for_each
from tidemark.formats import hosts
from tidemark.formats.hosts import Host


def test_an_ipv4_host_is_four_bytes_and_a_four_byte_port() -> None:
    host = Host(bytes([127, 0, 0, 1]), 10911)
    assert hosts.encode(host).hex() == "7f00000100002a9f"
    assert hosts.decode(bytes.fromhex("7f00000100002a9f"), v6=False) == host


def test_an_ipv6_host_is_sixteen_bytes_and_a_four_byte_port() -> None:
    raw = bytes.fromhex("20010db800000000000000000000000100000457")
    host = hosts.decode(raw, v6=True)
    assert host.text == "[2001:db8::1]:1111"
    assert hosts.encode(host) == raw


@given(strategies.hosts())
def test_a_host_comes_back_from_its_bytes_whatever_follows(host: Host) -> None:
    raw = hosts.encode(host)
    assert len(raw) == (hosts.V6_SIZE if host.is_v6 else hosts.V4_SIZE)
    assert hosts.decode(memoryview(raw + b"more"), v6=host.is_v6) == host


@given(strategies.hosts().filter(lambda host: 0 <= host.port <= 65_535))
def test_a_host_comes_back_from_its_text(host: Host) -> None:
    # Mapped addresses print in a form of their own; what counts is that they parse back.
    assert hosts.parse(host.text) == host


def test_the_long_form_of_an_ipv6_address_parses_to_the_same_host() -> None:
    assert hosts.parse("[2001:db8:0:0:0:0:0:1]:80") == hosts.parse("[2001:db8::1]:80")


@for_each(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        ":80",
        "10.0.0.1:-1",
        "10.0.0.1:65536",
        "10.0.0.1:٣",
        "10.0.0.1:8_0",
        "10.0.0.1: 80",
        "10.0.0.256:80",
        "10.0.0:80",
        "localhost:80",
        "2001:db8::1:80",
        "[10.0.0.1]:80",
        "[2001:db8::1%eth0]:80",
        "[2001:db8::1:80",
        "10.0.0.1:" + "0" * 5000,
    ],
)
def test_text_that_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        hosts.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_a_host_or_a_value_error(text: str) -> None:
    try:
        host = hosts.parse(text)
    except ValueError:
        return
    assert hosts.parse(host.text) == host


@given(st.binary(max_size=24), st.booleans())
def test_any_bytes_are_a_host_or_a_value_error(raw: bytes, v6: bool) -> None:
    size = hosts.V6_SIZE if v6 else hosts.V4_SIZE
    if len(raw) < size:
        with pytest.raises(ValueError, match=f"{size} bytes"):
            hosts.decode(raw, v6=v6)
    else:
        assert hosts.encode(hosts.decode(raw, v6=v6)) == raw[:size]


@pytest.mark.parametrize(
    "host", [Host(b"", 1), Host(b"12345", 1), Host(b"1234", 1 << 31), Host(b"1234", -(1 << 31) - 1)]
)
def test_a_host_that_does_not_fit_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match=r"bytes"):
        hosts.encode(host)
