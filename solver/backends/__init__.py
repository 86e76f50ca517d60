"""Backends: integer programs and matchings solved by other libraries."""
