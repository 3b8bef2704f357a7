"""Files and trees: read, chunk, pack, write back."""
