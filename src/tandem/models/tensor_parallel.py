"""The tensor-parallel boundary: where the ranks of a stage exchange activations in the forward
pass.

Axes: T packed tokens, S tokens of one rank's share, C features.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tandem.kernels.collectives.contract import Collectives


@dataclass(frozen=True, slots=True)
class TensorParallelBoundary:
    """Where ranks exchange activations within a layer, for a step of `tokens` tokens.

    Column-parallel linears read the features of all tokens and row-parallel ones leave partial
    sums of them. In between, each rank holds all tokens, or (`by_token`) an equal share of them,
    the last filled up with rows of no meaning.
    """

    collectives: Collectives
    tokens: int
    by_token: bool

    @property
    def held_tokens(self) -> int:
        """Rows between the linears, on every rank alike."""
        return -(-self.tokens // self.collectives.size) if self.by_token else self.tokens

    def whole(self, held_SC: Tensor) -> Tensor:
        """x_TC of all tokens, from what each rank holds."""
        if not self.by_token:
            return held_SC
        return self.collectives.all_gather(held_SC, 0)[: self.tokens]

    def summed(self, partial_TC: Tensor) -> Tensor:
        """held_SC: the ranks' partial sums added up."""
        if not self.by_token:
            return self.collectives.all_reduce(partial_TC)
        missing = self.held_tokens * self.collectives.size - self.tokens
        return self.collectives.reduce_scatter(functional.pad(partial_TC, (0, 0, 0, missing)))
