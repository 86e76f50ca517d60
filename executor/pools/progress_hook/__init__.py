"""The folder on the module path of every job; nothing in it needs Dovetail."""
