"""The store's own files as tables: records, queue units, consumer offsets.

Reads a live store, a stopped one, a copy or one that RocketMQ wrote: nothing is locked, written or
repaired. ``reader`` is the way in without Spark, ``spark`` with it.
"""
