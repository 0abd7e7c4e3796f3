"""Memory that other processes may reach: anonymous, and gone with the last process that maps it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """`bytes` of memory at `address`. `descriptor` is the file descriptor behind it that another
    process of this user may map, or -1. `device` is "cpu" or as torch names a GPU. Whoever made
    it keeps it alive."""

    address: int
    bytes: int
    descriptor: int = -1
    device: str = "cpu"
