"""One short file a family: what distinguishes it from the common decoder."""
