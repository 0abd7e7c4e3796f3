"""Recorded workloads: the formats that are read, and a trace played otherwise than recorded."""
