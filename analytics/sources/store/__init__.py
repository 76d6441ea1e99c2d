"""The store's own files as tables: records, queue units, consumer offsets.

Live stores, stopped ones, copies and stores of RocketMQ can be read: nothing is locked, written or
repaired. ``reader`` is the interface without Spark, ``spark`` the one with Spark.
"""
