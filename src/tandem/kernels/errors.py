"""The one error of the room: a caller handed a kernel tensors that it cannot take."""


class KernelArgumentError(ValueError):
    """Names the argument, what it was and what was expected."""

    def __init__(self, argument: str, found: object, expected: str) -> None:
        super().__init__(f"{argument} is {found}; expected {expected}")
        self.argument = argument
