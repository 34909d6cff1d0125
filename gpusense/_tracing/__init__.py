"""What a program calls: the tracer and its blocks, or those that do nothing, and which of them is active.

In: calls of the application. Out: boundaries and records for ``_capture``, summaries for people. The root imports it
when it is first used; integrations, exporters and the command line may.
"""
