"""The interfaces of live mode: HTTP server and client, commands, tables and the dashboard."""
