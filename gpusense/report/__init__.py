"""Renderers of a session, one file a format."""
