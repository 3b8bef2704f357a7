"""State as plain data and bytes."""
