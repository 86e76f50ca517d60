"""Shared by commands: their declaration, tables, charts, pages, files and figures as text."""
