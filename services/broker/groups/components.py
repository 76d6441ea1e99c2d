"""The components that serve consumer groups."""

from __future__ import annotations

from typing import NamedTuple

from services.broker.groups.commits import Commits
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.coordinator import Coordinator
from services.broker.groups.nacks import Nacks
from services.broker.groups.redrive import Redrive
from services.broker.groups.trace import Tracer
from services.broker.groups.views import GroupViews


class GroupComponents(NamedTuple):
    """Serve the API's calls for consumer groups."""

    configs: GroupConfigs
    coordinator: Coordinator
    commits: Commits
    views: GroupViews
    nacks: Nacks
    redrive: Redrive
    tracer: Tracer
