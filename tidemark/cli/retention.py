"""``tidemark retention``: how long files stay, how full the disk is, and when it will be full."""

from __future__ import annotations

import click

from tidemark.cli.output import expected_errors, output_option, print_facts, url_option, with_client
from tidemark.client.client import Client
from tidemark.client.connection import path


@click.command()
@url_option
@output_option
@expected_errors
def retention(url: str) -> None:
    """Show what the broker keeps and for how long, and its forecast of a full disk."""

    async def look(client: Client) -> dict[str, object]:
        return (await client.connection.call("GET", path("retention"), idempotent=True)).map()

    print_facts(with_client(url, look))
