"""Builds the C++ sources of the room into one shared library and loads it."""
