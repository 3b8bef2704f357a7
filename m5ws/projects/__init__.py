"""New workspaces."""
