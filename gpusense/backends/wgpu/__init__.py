"""wgpu-native: adapters as devices, asked in a child process first, and the records of passes that are timed here."""
