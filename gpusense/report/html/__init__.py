"""The report as one page that needs no network: data as JSON beside scripts and styles of our own."""
