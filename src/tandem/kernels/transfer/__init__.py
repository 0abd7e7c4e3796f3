"""Copies of scattered pieces of memory, and checksums that tell whether they came whole."""
