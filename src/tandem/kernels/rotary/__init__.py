"""Rotary embedding of queries and keys, and the write of keys and values into the pool."""
