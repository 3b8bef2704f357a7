"""Records that are stored or exchanged, one noun a file. No I/O here."""
