"""Output for people: tables, progress, verdicts, signals."""
