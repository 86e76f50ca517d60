"""Shared by commands: declarations, tables, charts, pages, files and the wording of figures."""
