"""HTML pages that need nothing else: no script, no font, no file from elsewhere."""
