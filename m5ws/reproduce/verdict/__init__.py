"""The verdict, and the reasons that it may name."""
