"""Connectors: ways to move bytes between the memories of two processes. `contract` is the port;
shared memory, TCP, NIXL and CUDA IPC stand behind it.
"""
