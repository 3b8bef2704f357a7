"""Container engines, and runs in a pinned image.

`engines` finds the engine that answers, and digests of images. `choice` decides if m5ws starts the pinned image.
`command` has the engine's command line, and `launcher` starts, identifies and removes a container.
"""
