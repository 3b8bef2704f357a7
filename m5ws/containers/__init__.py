"""Container engines, and runs in a pinned image.

`engines` finds the engine that answers, the digest of an image, and the digest of a started container.
"""
