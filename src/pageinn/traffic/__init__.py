"""Readers of other programs' logs and traces: whatever the format, a stream of records."""
