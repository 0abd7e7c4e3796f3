"""Kernels: a file for each operation, with its contract, the plain torch reference and the native
CPU implementation, whose C++ sources lie in `cpp`; one for GPUs would have a file of its own.

Models receive a `Kernels` object (see faces.py); nothing here is chosen by import.
"""
