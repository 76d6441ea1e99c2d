"""Common part of the services' commands: reads settings, sets up logs, runs the service.

A command consists of its options and one call of ``run_service``. Step before: the command line.
Step after: ``lifecycle`` runs the service and reports why it ended.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar

import click

from shared.runtime import logs
from shared.runtime.config import load
from shared.runtime.lifecycle import EXIT_USAGE, run_process, run_work
from tidemark.errors import BadConfig


class Settings(Protocol):
    """Settings that every service has; a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def log_level(self) -> str:
        """Lowest level of log lines that are written."""


S = TypeVar("S", bound=Settings)

check_config_option: Final = click.option(
    "--check-config",
    is_flag=True,
    help="Only read the settings and print them as JSON, or all mistakes in them.",
)


def run_service(
    service: str,
    kind: type[S],
    config: Path | None,
    env_prefix: str,
    given: Mapping[str, object],
    run: Callable[[S], Coroutine[None, None, None]],
    *,
    work: Callable[[S], None] | None = None,
    check_config: bool = False,
    look: Callable[[S], object] | None = None,
) -> NoReturn:
    """Run a service with settings of type kind, and end the process with its exit status.

    config: a TOML file. given: values of the command line, None for those not given. run: the
    service's coroutine. work: runs instead of ``run``, without an event loop. If settings are
    wrong, all mistakes are printed to standard error, because no log exists yet, and the exit
    status is 2. check_config: only check the settings. look: called by that check to read the
    files that the settings name (a secret); it may raise BadConfig.
    """
    try:
        settings = load(kind, config, env_prefix, given)
        logs.configure(service, settings.log_level)
        if check_config and look is not None:
            look(settings)
    except BadConfig as error:
        print(f"tidemark: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    if check_config:
        # Contains paths of secrets, never the secrets: no setting holds one itself.
        print(
            json.dumps({"service": service, "settings": dataclasses.asdict(settings)}, default=str)
        )
        sys.exit(0)
    if work is not None:
        sys.exit(run_work(lambda: work(settings)))
    sys.exit(run_process(lambda: run(settings)))
