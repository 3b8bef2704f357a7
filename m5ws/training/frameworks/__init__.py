"""Frameworks that own the training loop: a resumed attempt continues from the framework's own newest checkpoint."""
