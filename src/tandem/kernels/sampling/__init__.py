"""Drawing tokens as a pure function of logits, parameters, seed and position."""
