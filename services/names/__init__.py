"""The name service: the broker groups of a cluster, their nodes and their topics.

It keeps soft state only: brokers register every 30 s, and what is not renewed for two minutes is
dropped. Instances know nothing of each other (docs/cluster.md).
"""
