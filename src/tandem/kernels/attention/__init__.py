"""Causal attention over a paged pool of keys and values."""
