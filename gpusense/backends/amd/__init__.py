"""AMD cards: the kernel's files first, librocm_smi behind a self-test in a child."""
