"""``python -m services.ha``: read the settings, run ha, report why it ended."""

from __future__ import annotations

from pathlib import Path

import click

from services.ha.config import ENV_PREFIX, HaConfig, LocalHaConfig
from services.ha.lease import stores
from services.ha.service import SERVICE, run
from services.ha.startup import load_credentials
from shared.runtime.command import check_config_option, run_service


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=click.Path(path_type=Path), help="The store directory.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option("--host", help="Address of probes, metrics and commands; 127.0.0.1 by default.")
@click.option("--admin-port", type=int, help="Their port; 8083 by default.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Sockets; STORE/run by default.")
@click.option(
    "--profile",
    type=click.Choice(["default", "local"]),
    default="default",
    help="local: small files.",
)
@check_config_option
def main(
    store: Path | None,
    config: Path | None,
    host: str | None,
    admin_port: int | None,
    run_dir: Path | None,
    profile: str,
    check_config: bool,
) -> None:
    """Run ha: it replicates the commit log and decides who is master."""
    run_service(
        SERVICE,
        LocalHaConfig if profile == "local" else HaConfig,
        config,
        ENV_PREFIX,
        {
            "store_dir": store,
            "admin_host": host,
            "admin_port": admin_port,
            "run_dir": run_dir,
        },
        run,
        check_config=check_config,
        look=look,
    )


def look(settings: HaConfig) -> None:
    """Read the files that the settings name. Raises BadConfig."""
    load_credentials(settings)
    stores.check_files(settings.cluster)


if __name__ == "__main__":
    main()
