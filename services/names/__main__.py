"""``python -m services.names``: reads the settings, runs the name service, reports why it ended."""

from __future__ import annotations

from pathlib import Path

import click

from services.names.config import ENV_PREFIX, NamesConfig
from services.names.service import SERVICE, run, secret_of
from shared.runtime.command import check_config_option, run_service


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option("--cluster", help="cluster.name of the brokers; tidemark by default.")
@click.option("--host", help="Address for clients and brokers; 127.0.0.1 by default.")
@click.option("--port", type=int, help="Port for clients and brokers; 9870 by default.")
@click.option("--admin-port", type=int, help="Port of probes and metrics; 9871 by default.")
@click.option(
    "--group", "groups", multiple=True, help="A broker group of the cluster; once for each."
)
@check_config_option
def main(
    config: Path | None,
    cluster: str | None,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    groups: tuple[str, ...],
    check_config: bool,
) -> None:
    """Run a name service: it answers where the broker groups and topics are."""
    run_service(
        SERVICE,
        NamesConfig,
        config,
        ENV_PREFIX,
        {
            "cluster": cluster,
            "host": host,
            "port": port,
            "admin_port": admin_port,
            "groups": groups or None,
        },
        run,
        check_config=check_config,
        look=secret_of,
    )


if __name__ == "__main__":
    main()
