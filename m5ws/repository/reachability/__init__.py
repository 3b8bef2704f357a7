"""Links between records, and all objects that a record needs."""
