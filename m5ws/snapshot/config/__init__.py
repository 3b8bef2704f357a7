"""Configuration files: flatten, merge, edit, override."""
