"""``tidemark retention``: shows how long files are kept and when the disk will be full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tidemark.cli.output import as_json, print_facts, with_broker, with_client
from tidemark.cli.times import shown_about, shown_duration, shown_time


@click.command()
@with_broker
def retention(url: str) -> None:
    """Show what the broker keeps and for how long, and when the disk will be full."""
    facts = with_client(url, lambda client: client.retention())
    print_facts(facts if as_json() else _shown(facts))


def _shown(facts: Mapping[str, Any]) -> dict[str, object]:
    """Format the answer for a person: the forecast first, the configuration last."""
    policy, oldest, following = facts["policy"], facts["oldest_file"], facts["next_deletion"]
    forecast = facts["forecast"]
    full_in_s = forecast["full_in_s"]
    return {
        "full_in": f"unknown: {forecast['reason']}"
        if full_in_s is None
        else shown_about(full_in_s),
        "sends_refused": facts["sends_refused"],
        "log_disk_used": _used(facts["log"]),
        "queues_disk_used": _used(facts["queues"]),
        "log_files": facts["log_files"],
        "oldest_file_written": None if oldest is None else shown_time(oldest["modified_ms"]),
        "next_deletion": shown_time(following["at_ms"]) or f"none, kept by: {following['kept_by']}",
        "unread_in_it_by_groups": following["groups_with_unread_messages"],
        "deleted_files": ", ".join(f"{why} {n}" for why, n in facts["deleted_files"].items()),
        "files_expire_after": shown_duration(policy["age_ms"]),
        "expired_go_at_hours": policy["delete_hours"],
        "log_bytes_max": policy["size_max"] or None,
        "disk_limits": f"{policy['used_percent_max']} % expired files are deleted at any hour, "
        f"{policy['forcible_percent']} % any file, {policy['warning_percent']} % sends are refused",
    }


def _used(space: Mapping[str, Any]) -> str | None:
    percent = space["used_percent"]
    return None if percent is None else f"{percent} % ({space['path']})"
