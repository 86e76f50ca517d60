"""What guards a rank, and runs without the rest of Dovetail: the standard library alone.

So a service can be updated, restarted or killed while jobs run. ``server`` is the program; the
service itself imports what it shares with it.
"""
