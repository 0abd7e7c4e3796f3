"""Post-training compression: a checkpoint of floats to one of codes, or to one with zeros."""
