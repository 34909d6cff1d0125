"""Optional integrations; each imports its host inside, nobody imports them."""
