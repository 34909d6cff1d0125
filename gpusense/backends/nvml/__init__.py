"""NVIDIA's management library: devices and their samples, by lanes of different cost."""
