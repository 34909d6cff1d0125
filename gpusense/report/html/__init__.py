"""The report as one page that needs no network: data as JSON and columns beside scripts and styles of our own.

``data`` gathers what the page shows, ``page`` writes it. The command and the comparison of runs import them.
"""
