"""Linear layers over packed weights: y = x W^T + b."""
