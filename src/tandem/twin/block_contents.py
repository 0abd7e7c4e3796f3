"""What lies in the KV blocks of a simulated worker, for runs that check it.

A simulated run moves names and sizes, no KV. Whoever wants to know that no block is used that holds
something else puts a model of the contents behind this port: it is told of everything that writes
or reads blocks, as late as a live worker may do it. What steps draw and draft comes from
it, too.
"""

from collections.abc import Sequence
from typing import Protocol

from tandem.facts.kv import BlockName, MoveKv
from tandem.facts.steps import StepPlan, StepResult


class EngineDied(Exception):
    """The process of a worker dies of a step."""


class BlockContents(Protocol):
    """Of one start of a worker."""

    def compute_step(self, plan: StepPlan) -> StepResult:
        """A step computes; gives what it draws and drafts. Raises EngineDied."""
        ...

    def export_contents(self, blocks: Sequence[int], versions: Sequence[int]) -> None:
        """Others may read these blocks as they are now."""
        ...

    def receive_contents(self, source: "BlockContents | None", order: MoveKv) -> bool:
        """The KV that was ordered comes from another worker, or (None) does not. False: it has not
        come, or what was read is not what was exported there."""
        ...

    def spoil_contents(self, blocks: Sequence[int]) -> None:
        """Whatever a slower tier was to bring into these blocks has not come."""
        ...

    def stage_contents(self, copy_id: int, blocks: Sequence[int]) -> None:
        """Copy blocks to the staging memory."""
        ...

    def keep_contents(self, copy_id: int, rows: Sequence[int], names: Sequence[BlockName]) -> None:
        """A slower tier is given staged blocks under these names."""
        ...

    def drop_contents(self, copy_id: int) -> None:
        """The staged copy is needed no more."""
        ...

    def fetch_contents(self, names: Sequence[BlockName], blocks: Sequence[int]) -> None:
        """A slower tier has brought these into these blocks."""
        ...
