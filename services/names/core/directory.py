"""The name service without its shell: table, completeness and answers, always in step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.names.core.answers import Answers
from services.names.core.bounds import TableBounds
from services.names.core.completeness import Completeness
from services.names.core.table import EVERYTHING, Changes, Table
from shared.cluster.routes import Registration


class Directory:
    """What one instance knows of its cluster. Times are those of the monotonic clock [s]."""

    def __init__(
        self,
        cluster: str,
        bounds: TableBounds,
        *,
        expected: Iterable[str],
        names: Sequence[str],
        kept_max: int,
        now_s: float,
    ) -> None:
        """expected: broker groups that the configuration names. names: URLs of the name services
        that answers list. kept_max: number of answers that are kept.
        """
        self.table = Table(cluster, bounds)
        self.completeness = Completeness(expected, now_s)
        self._answers = Answers(self.table, self.completeness, names, kept_max)
        self.kept = self._answers.kept
        self.answer = self._answers.of

    def register(self, group: str, node: str, said: Registration, now_s: float) -> Changes:
        """Apply a registration; return what has changed. Raises RegistrationRefused, BadRequest."""
        changes = self.table.register(group, node, said, now_s)
        if said.role == "master" and self.completeness.note_heard(group):
            changes = EVERYTHING
        return self._changed(changes)

    def expire(self, now_s: float) -> Changes:
        """Drop what was not renewed; return what has changed."""
        changes = self.table.expire(now_s)
        gone = {group for group, _ in changes.expired} - self.table.groups.keys()
        is_other = self.completeness.note_gone(gone)
        if self.completeness.expire(now_s) or is_other:
            changes = EVERYTHING._replace(expired=changes.expired)
        return self._changed(changes)

    def note_peers(self, named: Iterable[str]) -> Changes:
        """Expect the broker groups that other instances name; return what has changed."""
        known = [name for name, group in self.table.groups.items() if group.master is not None]
        self.completeness.note_peers(named, known)
        return self._changed(EVERYTHING)

    def _changed(self, changes: Changes) -> Changes:
        self._answers.forget(changes)
        return changes
