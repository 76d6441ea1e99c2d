"""A group of nodes in one process: simulated disks, pages, network, lease and clocks, real rules.

What decides is the product's own code: ``services.ha.replica`` with everything it is made of,
``shared.cluster.grant``, the broker's rules of a term. Simulated is what carries their effects out:
``ha``, ``broker`` and ``reput`` of a node are actors of their own, which share one page and can be
killed or stopped between any two accesses to it. ``run`` plays one seed, ``history`` says what must
hold, ``planted`` breaks one rule at a time.
"""
