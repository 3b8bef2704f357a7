"""MLflow: a page for each run, brought up to date from the ledger."""
