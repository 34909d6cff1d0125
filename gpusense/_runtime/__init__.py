"""What everything else stands on: errors, logging, threads, fork and exit, clocks, settings, text for people.

Nothing comes in from other rooms. Every room may import it.
"""
