"""Container engines, and runs in a pinned image.

`engines` finds the engine that answers, decides if m5ws starts the pinned image, and finds digests of images. `command`
has the engine's command line, and `launcher` starts, identifies and removes a container.
"""
