"""NCCL's own account of its network: its log in each rank, the check for EFA, and rules for its variables."""
