"""Sources of a snapshot: git, DVC, pinned files, tokenizers."""
