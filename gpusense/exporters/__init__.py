"""Optional exporters; each imports its own extra inside, nobody imports them."""
