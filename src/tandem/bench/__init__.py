"""Measures a server from its clients' side: drives load, reads traces, and asks tasks with known
answers."""
