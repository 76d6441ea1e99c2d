"""``python -m services.broker``: reads the settings, runs the broker, reports why it ended."""

from __future__ import annotations

from shared.runtime import quick_start

if __name__ == "__main__":
    quick_start.begin()

from pathlib import Path

import click

from services.broker.config import ENV_PREFIX, BrokerConfig, LocalBrokerConfig
from services.broker.registrar import registration_secret
from services.broker.service import SERVICE, run
from shared.runtime.command import check_config_option, run_service


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=click.Path(path_type=Path), help="The store directory.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option("--host", help="Address of the API; 127.0.0.1 by default.")
@click.option("--port", type=int, help="Port of the API; 8080 by default.")
@click.option("--admin-port", type=int, help="Port of probes and metrics; 8081 by default.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Sockets; STORE/run by default.")
@click.option(
    "--profile",
    type=click.Choice(["default", "local"]),
    default="default",
    help="local: small files, topics made by the first send.",
)
@check_config_option
def main(
    store: Path | None,
    config: Path | None,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    run_dir: Path | None,
    profile: str,
    check_config: bool,
) -> None:
    """Run a broker: it accepts, stores and serves messages."""
    quick_start.end()
    run_service(
        SERVICE,
        LocalBrokerConfig if profile == "local" else BrokerConfig,
        config,
        ENV_PREFIX,
        {
            "store_dir": store,
            "host": host,
            "port": port,
            "admin_port": admin_port,
            "run_dir": run_dir,
        },
        run,
        check_config=check_config,
        look=registration_secret,
    )


if __name__ == "__main__":
    main()
