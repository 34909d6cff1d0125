"""A session as something to look at, one file a format: text, JSON, HTML, traces, flame graphs, a comparison of runs.

In: a session, and what the analysis finds in it. Out: text or bytes, to a path or an open file.
The command, the integrations and the tracer's exports import it.
"""
