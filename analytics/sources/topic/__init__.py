"""Messages of a topic as tables, read from the broker over HTTP by queue offsets.

Any Spark job can use it, in batch or as a stream. It joins no group and commits nothing at the
broker. ``reader`` is the interface without Spark, ``spark`` the one with Spark.
"""
