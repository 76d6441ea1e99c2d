"""What the commands of the services have in common: settings read, logs set up, the service run.

A command is its options and one call of ``run_service``. Step before: the command line. Step after:
``lifecycle`` runs the service and says why it ended.
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
    """What every service's settings have: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def log_level(self) -> str:
        """Lines below it are not written."""
        ...


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
    """Run a service with the settings of kind, and end the process with its exit status.

    config: a TOML file. given: what the command line says, None where it says nothing. run: the
    service, on a loop. work: done instead, without one. Mistakes in the settings are printed for
    whoever typed them, all of them, and end it with 2: there is no log yet. check_config: nothing
    is run; look: then reads what the settings name (a secret), and raises BadConfig too.
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
        # Paths of secrets, never what is in them: no setting holds one itself.
        print(
            json.dumps({"service": service, "settings": dataclasses.asdict(settings)}, default=str)
        )
        sys.exit(0)
    if work is not None:
        sys.exit(run_work(lambda: work(settings)))
    sys.exit(run_process(lambda: run(settings)))
