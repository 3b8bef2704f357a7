"""Everything that is stored or exchanged, one noun a file. No I/O here."""
