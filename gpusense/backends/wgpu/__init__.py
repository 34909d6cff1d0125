"""wgpu-native: adapters as devices, asked in a child process first."""
