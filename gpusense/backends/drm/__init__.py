"""What Linux itself says of any GPU: DRM's files and the clients of each card."""
