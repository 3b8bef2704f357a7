"""Digests of tensors, the same for every sharding."""
