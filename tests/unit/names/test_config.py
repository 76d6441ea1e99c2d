from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from services.names.__main__ import main
from services.names.config import NamesConfig
from shared.runtime.config import BrokenRules


def test_long_polls_leave_connections_for_brokers() -> None:
    NamesConfig(held_polls_max=75, connections_max=100)
    with pytest.raises(BrokenRules, match=r"76 long polls .* at most 75, or raise connections_max"):
        NamesConfig(held_polls_max=76, connections_max=100)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_host_that_clients_cannot_reach_needs_a_url(host: str) -> None:
    with pytest.raises(BrokenRules, match="url: it is needed with host"):
        NamesConfig(host=host)
    assert NamesConfig(host=host, url="http://names-0:1/").own_url == "http://names-0:1"


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "http://10.0.0.1:9870"), ("::1", "http://[::1]:9870")]
)
def test_without_a_url_clients_get_host_and_port(host: str, url: str) -> None:
    assert NamesConfig(host=host).own_url == url


def test_all_instances_may_have_one_list_of_urls() -> None:
    urls = ("http://names-0:9870/", "http://names-1:9870")
    assert NamesConfig(url="http://names-0:9870", peers=urls).other_urls == urls[1:]
    assert NamesConfig(url="http://names-2:9870", peers=urls).other_urls == (
        "http://names-0:9870",
        "http://names-1:9870",
    )


def test_broker_groups_may_be_options_of_the_command() -> None:
    environment = {"TIDEMARK_NAMES_GROUPS": "g7"}
    for arguments, groups in (
        (("--group=g0", "--group=g1"), ["g0", "g1"]),
        ((), ["g7"]),
    ):
        shown = CliRunner().invoke(main, [*arguments, "--check-config"], env=environment)
        assert json.loads(shown.output)["settings"]["groups"] == groups
