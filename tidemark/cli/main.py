"""The ``tidemark`` command: its subcommands and its exit status."""

from __future__ import annotations

import sys
from typing import Final

import click

from tidemark import __version__
from tidemark.cli.cluster import cluster
from tidemark.cli.consume import consume
from tidemark.cli.delay import delay
from tidemark.cli.dev import dev
from tidemark.cli.dlq import dlq
from tidemark.cli.doctor.command import doctor
from tidemark.cli.drill import drill
from tidemark.cli.group import group
from tidemark.cli.lag import lag
from tidemark.cli.message import message
from tidemark.cli.produce import produce
from tidemark.cli.programs import INTERRUPTED
from tidemark.cli.retention import retention
from tidemark.cli.store import store
from tidemark.cli.support.command import support_bundle
from tidemark.cli.topic import topic


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tidemark")
def cli() -> None:
    """Tidemark: a durable message broker with RocketMQ's storage model.

    \b
    Start a node here:     tidemark dev
    Send lines:            tidemark produce lines --file FILE
    Read them back:        tidemark consume lines --from-beginning
    """


COMMANDS: Final = (
    *(dev, topic, produce, consume, message),
    *(group, lag, delay, dlq, retention, cluster, drill, store),
    *(doctor, support_bundle),
)
for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        result = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except click.Abort as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        click.echo("\nno answer: nothing was done", err=True)  # end of input at a prompt
        sys.exit(1)
    # Without standalone_mode, ``--help`` and ``ctx.exit(n)`` return a status.
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
