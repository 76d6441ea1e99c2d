from __future__ import annotations

import pytest

from services.names.config import NamesConfig
from shared.runtime.config import BrokenRules


def test_long_polls_leave_connections_for_brokers() -> None:
    NamesConfig(held_polls_max=75, connections_max=100)
    with pytest.raises(BrokenRules, match=r"76 long polls .* at most 75, or raise connections_max"):
        NamesConfig(held_polls_max=76, connections_max=100)
