"""A master and a slave for measurements: two nodes of one group, with the lease in a directory.

    with Group() as group:
        ... group.master.url ...

Neither is pinned, because the measurement is the cost of two nodes on two cores.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final, Self

from bench.servers import HOST, Node, work_dir
from drills.node_group import NodeGroup

NAMES: Final = ("n0", "n1")


class Group(NodeGroup[Node]):
    """Two nodes. When the ``with`` block starts, the master is known, and with_slave the slave is
    in sync."""

    def __init__(
        self, *, with_slave: bool = True, times: str = "default", names: Sequence[str] = ()
    ) -> None:
        """with_slave: False stops the slave after the group is founded, which leaves a set of one.
        times: profile of lease, heartbeats and limits: ``default``, ``long`` or ``local``.
        names: addresses of name services.
        """
        super().__init__(
            work_dir("group"),
            dict.fromkeys(NAMES, HOST),
            lambda _, ports, table: Node(
                profile="local",
                cluster=table,
                ports=ports,
                core=None,
                broker={"names": {"urls": list(names)}},
            ),
            {"profile": times},
        )
        self._with_slave = with_slave
        self._master = NAMES[0]

    @property
    def master(self) -> Node:
        """The master as of the last query; at first the first node."""
        return self.nodes[self._master]

    @property
    def slave(self) -> Node:
        return next(node for name, node in self.nodes.items() if name != self._master)

    def __enter__(self) -> Self:
        try:
            self.start()  # founding needs all nodes to report that they know no group
            self.wait_in_sync()
            if not self._with_slave:
                self.end_slave()
        except BaseException:
            self.print_logs()
            self.close()
            raise
        return self

    def serving(self) -> str | None:
        """Return the node whose broker accepts sends, and remember it as ``master``."""
        name = super().serving()
        self._master = name or self._master
        return name

    def end_slave(self) -> None:
        """Stop the slave and wait until the master is the only in-sync member."""
        self.slave.stop()
        self.wait(lambda: self.in_sync() == {self._master}, "a set of one")

    def empty_slave(self) -> None:
        """Remove the stopped slave's data, so that it comes back as an empty, new member."""
        shutil.rmtree(self.slave.store_dir)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)
