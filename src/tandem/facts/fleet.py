"""Roles of workers and tiers of KV."""

from enum import StrEnum


class Role(StrEnum):
    """Which phases a worker takes. Every worker runs the same engine, so a role may flip."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        return self is not Role.PREFILL


class PlanningMode(StrEnum):
    """What becomes of a planner's decisions: they are carried out, or only told and recorded."""

    AUTOMATIC = "automatic"
    ADVISORY = "advisory"


class Tier(StrEnum):
    """Where KV blocks lie, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"
