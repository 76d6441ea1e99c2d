"""Drills without the right to make network namespaces."""

from __future__ import annotations

import pytest

from drills.namespaces import Loopback, NoNamespaces


def test_without_namespaces_nothing_can_be_cut_and_the_message_says_what_is_needed() -> None:
    with pytest.raises(NoNamespaces, match="run the drills as root"):
        Loopback().cut("n0", "n1")
