"""New workspaces, and the demo."""
