"""The table of the name service and all its rules. Pure: events and times in, values out."""
