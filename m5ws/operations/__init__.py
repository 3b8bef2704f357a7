"""What m5ws does, one module a flow: a pure half that returns a record, and a thin half that applies it."""
