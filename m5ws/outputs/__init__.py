"""Output files of a script: collect, store, restore."""
