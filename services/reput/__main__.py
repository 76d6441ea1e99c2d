"""``python -m services.reput``: read the configuration, run reput and report why it ended."""

from __future__ import annotations

from shared.runtime import quick_start

if __name__ == "__main__":
    quick_start.begin()

from pathlib import Path

import click

from services.reput.config import ENV_PREFIX, LocalReputConfig, ReputConfig
from services.reput.once import run_once
from services.reput.service import SERVICE, run
from shared.runtime.command import check_config_option, run_service


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=click.Path(path_type=Path), help="The store directory.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option("--host", help="Address of probes and metrics; 127.0.0.1 by default.")
@click.option("--admin-port", type=int, help="Port of probes and metrics; 8082 by default.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Sockets; STORE/run by default.")
@click.option(
    "--profile",
    type=click.Choice(["default", "local"]),
    default="default",
    help="local: small files.",
)
@click.option("--once", is_flag=True, help="Dispatch a stopped store to its end, then exit.")
@check_config_option
def main(
    store: Path | None,
    config: Path | None,
    host: str | None,
    admin_port: int | None,
    run_dir: Path | None,
    profile: str,
    once: bool,
    check_config: bool,
) -> None:
    """Run reput: it dispatches the commit log into consume queues and index."""
    quick_start.end()
    run_service(
        SERVICE,
        LocalReputConfig if profile == "local" else ReputConfig,
        config,
        ENV_PREFIX,
        {
            "store_dir": store,
            "admin_host": host,
            "admin_port": admin_port,
            "run_dir": run_dir,
        },
        run,
        work=run_once if once else None,
        check_config=check_config,
    )


if __name__ == "__main__":
    main()
