"""Tandem: LLM inference, whole on one laptop, that grows to a disaggregated cluster."""

__version__ = "0.5.1"
