"""Sentences of records: the words of verdicts, gaps, changes and their parts are here alone, and nothing reads them."""
