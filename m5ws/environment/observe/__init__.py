"""Facts of this machine and of its Python, or of another environment."""
