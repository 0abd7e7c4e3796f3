"""Which planning policy a name means."""

from collections.abc import Callable
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.planning.arrow import Arrow
from tandem.policy.planning.contract import Planning
from tandem.policy.planning.dynamo import Dynamo, DynamoLoad, DynamoThroughput
from tandem.policy.planning.static import Static
from tandem.policy.planning.tandem import Tandem
from tandem.policy.planning.tetri import TetriInfer
from tandem.policy.planning.utilisation import UtilisationThreshold

PLANNINGS: dict[str, Callable[..., Planning]] = {
    "static": Static,
    "utilisation": UtilisationThreshold,
    "tetri": TetriInfer,
    "arrow": Arrow,
    "dynamo": Dynamo,
    "dynamo_throughput": DynamoThroughput,
    "dynamo_load": DynamoLoad,
    "tandem": Tandem,
}


def planning(name: str, **options: Any) -> Planning:
    """A new policy of that name with its options. Raises `InvalidConfiguration` for an unknown
    name or option."""
    if name not in PLANNINGS:
        raise InvalidConfiguration(f"planning is {name!r}; choose one of {', '.join(PLANNINGS)}")
    try:
        return PLANNINGS[name](**options)
    except TypeError as error:
        raise InvalidConfiguration(f"planning {name!r}: {error}; correct its options") from error
