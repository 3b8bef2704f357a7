"""Export of checkpoints as files of other tools."""
