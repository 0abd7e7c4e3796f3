"""Kernels: one folder an operation, each with a contract, a plain torch face and a native CPU face.

Models receive a `Kernels` object (see faces.py); nothing here is chosen by import.
"""
