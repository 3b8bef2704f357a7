"""References: publish, and the gc plans that are in the way."""
