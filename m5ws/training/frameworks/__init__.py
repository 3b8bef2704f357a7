"""Frameworks that own the training loop: their losses, and resumes from their own newest checkpoints."""
