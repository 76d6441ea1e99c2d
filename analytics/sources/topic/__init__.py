"""Messages of a topic as tables, read from the broker over HTTP by queue offsets.

For any Spark job that wants messages, in batch or as a stream; no group is joined and nothing is
committed at the broker. ``reader`` is the way in without Spark, ``spark`` with it.
"""
