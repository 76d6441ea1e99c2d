"""Broker groups: whether clients find every broker group, and what name services do for that."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.limits import NAMES_NEAR_BOUND
from deploy.grafana.panels import (
    ORANGE,
    RED,
    Board,
    Column,
    Lines,
    Panel,
    Row,
    Stat,
    Step,
    Table,
    Timeline,
    rare,
)
from deploy.grafana.queries import (
    NAMES_RUN,
    NODE,
    NODES,
    Query,
    gauge,
    or_zero,
    quantile,
    rate,
    series,
)
from deploy.grafana.states import ROLE_WORDS, YES_NO, role_state

NAMES: Final = 'cluster=~"$cluster", service="names"'
"""Selector of name services, which belong to no broker set."""
TARGETS: Final = f"up{{{NAMES}}}"
NO_NAMES: Final = "no name service"
CONFIGURED: Final = f"max by ({NODES}) (tidemark_broker_names_configured{{{NODE}}})"
REGISTERED: Final = f"max by ({NODES}) (tidemark_broker_names_registered{{{NODE}}})"
REFUSAL: Final = "a registration that was refused"
WORRY: Final = (Step(1, RED),)

NOW: Final[tuple[Panel, ...]] = (
    Stat(
        Query(or_zero(f"count({TARGETS} == 0)", TARGETS), given=NAMES_RUN),
        title="Name services down",
        text="Brokers and clients use the others. Of all of them, only what clients know already "
        "is left.",
        unit=units.COUNT,
        steps=WORRY,
        unknown=NO_NAMES,
    ),
    Stat(gauge("tidemark_names_groups", "", how="min", where=NAMES), unknown=NO_NAMES),
    Stat(gauge("tidemark_names_missing_groups", "", where=NAMES), steps=WORRY, unknown=NO_NAMES),
    Stat(
        gauge("tidemark_names_groups_without_master", "", where=NAMES),
        steps=WORRY,
        unknown=NO_NAMES,
        links=(uids.ON_CLUSTER,),
    ),
    Stat(
        Query(f"sum({CONFIGURED} - {REGISTERED})"),
        title="Registrations missing",
        text="Over all brokers, name services that have not accepted the last registration.",
        steps=(Step(1, ORANGE),),
    ),
    Stat(
        gauge("tidemark_names_bound_used_ratio", "", where=NAMES),
        title="Fullest bound",
        steps=NAMES_NEAR_BOUND.steps,
        unknown=NO_NAMES,
    ),
)
WHO: Final = (
    Table(
        (
            Query(role_state()),
            gauge("tidemark_ha_epoch", NODES),
            Query(REGISTERED),
            Query(CONFIGURED),
        ),
        width=14,
        title="Nodes of the broker groups",
        text="Role and epoch as each node has them, and with how many name services its broker is "
        "registered.",
        unit=units.PLAIN,
        columns=(
            Column("broker", "Broker set", links=(uids.TO_BROKER,)),
            Column("replica", "Node"),
            Column("A", "Role", units.PLAIN, words=ROLE_WORDS),
            Column("B", "Epoch", units.PLAIN),
            Column("C", "Registered", units.COUNT),
            Column("D", "Configured", units.COUNT),
        ),
        sort="Broker set",
        nothing="Nothing is scraped",
    ),
    Timeline(gauge("tidemark_names_complete", "replica", where=NAMES), width=10, words=YES_NO),
)
ROUTES: Final = (
    Lines(rate("tidemark_names_routes_total", "replica, kind", where=NAMES)),
    Lines(gauge("tidemark_names_long_polls", "replica", where=NAMES)),
    Lines(gauge("tidemark_names_connections", "replica", where=NAMES)),
)
REGISTRATIONS: Final = (
    Lines(rate("tidemark_names_registrations_total", "replica, kind", where=NAMES)),
    Lines(
        quantile(0.99, "tidemark_names_register_duration_seconds", "replica", where=NAMES),
        steps=(Step(0.05, RED),),
    ),
    rare("tidemark_names_expired_nodes_total", "replica", "a node that has gone", where=NAMES),
)
REFUSED: Final = (
    rare("tidemark_names_refused_total", "replica, request, code", REFUSAL, where=NAMES),
    rare("tidemark_broker_names_refused_total", "replica, code", REFUSAL),
)
SIZE: Final = (
    Lines(gauge("tidemark_names_nodes", "replica", where=NAMES)),
    Lines(gauge("tidemark_names_topics", "replica", where=NAMES)),
    Lines(gauge("tidemark_names_entries", "replica", where=NAMES)),
)
BOUNDS: Final = (
    Lines(
        gauge("tidemark_names_bound_used_ratio", "replica, bound", where=NAMES),
        steps=NAMES_NEAR_BOUND.steps,
        top=1,
    ),
    Lines(
        series(f"tidemark_process_anonymous_memory_bytes{{{NAMES}}}", "replica", given=NAMES_RUN),
        title="Memory of name services",
        text="It follows the number of topics and of answers that are kept ready.",
        nothing="There is no name service",
    ),
)

BROKER_GROUPS: Final = Board(
    uid=uids.BROKER_GROUPS,
    title="Tidemark / Broker groups",
    description="Do clients find every broker group, and are name services up to it?",
    rows=(
        Row("Now", (NOW, WHO), (4, 8)),
        Row("Routes", (ROUTES,), (7,)),
        Row("Registrations", (REGISTRATIONS, REFUSED), (7, 6)),
        Row("Limits", (SIZE, BOUNDS), (6, 7)),
    ),
)
