"""States as numbers for timelines: one number per pair or node, with word and colour. Pure."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, Word
from deploy.grafana.queries import AGE, BY_GROUP, BY_PAIR, MEMBERS, NODE, OBJECTIVE, STUCK

PAIR_WORDS: Final = (
    Word(0, "in time", GREEN),
    Word(1, "late", ORANGE),
    Word(2, "stuck", YELLOW),
    Word(3, "late and stuck", RED),
    Word(4, "not read", BLUE),
    Word(5, "late, not read", RED),
)
ROLE_WORDS: Final = (
    Word(1, "master", GREEN),
    Word(2, "slave", BLUE),
    Word(3, "candidate", YELLOW),
    Word(4, "fenced", ORANGE),
    Word(5, "halted", RED),
)
SEVERITY_WORDS: Final = (Word(3, "page", RED), Word(2, "ticket", ORANGE), Word(1, "info", GREY))
YES_NO: Final = (Word(0, "no", RED), Word(1, "yes", GREEN))
NO_YES: Final = (Word(0, "no", GREEN), Word(1, "yes", RED))


def pair_state() -> str:
    """Return an expression by broker set, group and topic, with numbers of ``PAIR_WORDS``.

    The number is a sum: late is 1, stuck is 2, no members is 4. A queue is stuck only while the
    group has members.
    """
    return (
        f"(({AGE} > bool on ({BY_GROUP}) group_left () {OBJECTIVE})"
        f" + on ({BY_PAIR}) 2 * ({STUCK} > bool 0)"
        f" + on ({BY_GROUP}) group_left () 4 * ({MEMBERS} == bool 0))"
    )


def role_state() -> str:
    """Return an expression by node with numbers of ``ROLE_WORDS``; absent while it is unknown."""
    return "max by (broker, replica) ({})".format(
        " or ".join(
            f'{word.value:g} * (tidemark_ha_role{{{NODE}, role="{word.text}"}} == 1)'
            for word in ROLE_WORDS
        )
    )


def severity_state(firing: str, by: str) -> str:
    """Return an expression by firing alert with numbers of ``SEVERITY_WORDS``, to sort pages first.

    firing: a selector of ``ALERTS`` that ends in ``}``.
    """
    return "max by ({}) ({})".format(
        by,
        " or ".join(
            f'{word.value:g} * {firing[:-1]}, severity="{word.text}"}}'
            for word in reversed(SEVERITY_WORDS)
        ),
    )
