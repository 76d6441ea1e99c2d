"""Format the results of a run of drills as a Markdown page. Pure: results in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drills.running import Result

HEAD: Final = (
    "| # | Drill | Result | RTO s | allowed | RPO | acked | errors | unknown | duplicates | out of "
    "order |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def page(
    results: Sequence[Result],
    *,
    seed: int,
    began: str,
    seconds: float,
    pictures: Iterable[str],
    title: str = "Fault drills",
    profile: str = "local",
) -> str:
    """Return the report. profile: name of the group's timing profile."""
    passed = sum(result.passed for result in results)
    parts = [
        f"# {title}",
        "",
        f"{passed} of {len(results)} passed. Begun {began}, {seconds / 60:.1f} minutes, seed "
        f"{seed}, times of the profile `{profile}`. RTO: the longest time without a single "
        "acknowledgement from the fault on. RPO: messages acked at `replicated` that the last "
        "master's log does not have. Errors: requests that were refused, none of which is stored; "
        "unknown: requests whose senders do not know. Duplicates and out of order are counted in "
        "the log, over all drills of the same group so far.",
        "",
        HEAD,
        *(_row(result) for result in results),
        "",
    ]
    parts += [line for name in pictures for line in (f"![Acks and roles]({name})", "")]
    for result in results:
        parts += _details(result)
    return "\n".join(parts) + "\n"


def _row(result: Result) -> str:
    drill, verdict, requests = result.drill, result.verdict, result.requests
    cells = (
        drill.number,
        f"{drill.name}: {drill.title}",
        "passed" if result.passed else "**failed**",
        "" if result.restored_s is None else f"{result.restored_s:.2f}",
        "" if drill.restored_within_s is None else f"{drill.restored_within_s:g}",
        str(verdict.lost),
        f"{requests.acked:,}",
        str(sum(requests.errors.values()) - requests.unknown),
        str(requests.unknown),
        str(verdict.duplicates),
        str(verdict.out_of_order),
    )
    return f"| {' | '.join(cells)} |"


def _details(result: Result) -> list[str]:
    lines = [f"## {result.drill.number} {result.drill.name}", "", f"{result.drill.title}.", ""]
    lines += [f"- {note}" for note in result.notes]
    if errors := result.requests.errors:
        listed = ", ".join(f"{code} {count}" for code, count in errors.most_common())
        lines.append(f"- errors: {listed}")
    if lost_below := result.verdict.lost_below:
        lines.append(f"- {lost_below} acked at a lower level went with their only copy")
    lines.append(f"- {result.seconds:.0f} s")
    if result.failure:
        lines += ["", "```", result.failure.strip(), "```"]
    return [*lines, ""]
