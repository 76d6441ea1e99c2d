"""A group of nodes in one process: the services' own code in a simulated world.

Real are the decisions and the shells: ``services.broker.replication`` with the broker's log and
sends, ``services.ha`` with its carrier, watch, disk and recovery, reput. Simulated is what they run
on: disks (``node_disk``), the page's other readers, network, lease, clocks, threads and loops
(``process``, ``threads``, ``loop``). Not there are ports, consumer groups, delays and retention.
``run`` plays one seed; ``history``, ``page_rules`` and ``confirmed`` judge; ``planted`` breaks one
rule at a time.
"""
