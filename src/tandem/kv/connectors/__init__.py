"""Ways to move bytes between processes: shared memory, plain sockets, and what fabrics offer."""
