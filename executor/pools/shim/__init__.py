"""The shim that guards a rank; it needs only the standard library, not the rest of Dovetail.

So a service can be updated, restarted or killed while jobs run. ``server`` is the program; the
service imports the parts that both share.
"""
