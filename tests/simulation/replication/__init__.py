"""A group of nodes in one process: the services' own code in a simulated world.

The decisions and their shells are real: ``services.broker.replication`` with the broker's log and
sends, ``services.ha`` with its effect runner, links, commands, watch, disk and recovery, its stores
of the lease, and reput. Simulated are the disks (``node_disk``), the other readers of the page, the
network (``network``, ``transport``), what keeps the lease (``lease_api``, ``lease_volume``),
clocks, threads and event loops (``process``, ``threads``, ``loop``). There are no HTTP servers,
consumer groups, delayed messages and time-based retention. ``run`` plays one seed; ``history``,
``page_rules`` and ``confirmed`` check it; ``planted`` has the faults that prove the checks.
"""
