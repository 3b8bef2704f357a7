"""One module for each outside system; each heavy library is imported by its own adapter alone, on use."""
