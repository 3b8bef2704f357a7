"""Launchers: each starts the processes of a rendered launch request."""
