"""What Linux itself says of GPUs that no vendor library serves: DRM's files, and the clients of each card.

In: /sys and /proc. Out: ``source.open()``; ``clients`` also serves AMD's files.
"""
