"""The places of processes on the machines of a Ray cluster: what is wanted (`RayTerms`), and, for a
person to read, why there is none.

Knows no Ray: machines and processes are what they have and what they need, by the name of a
resource.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Resources = Mapping[str, float]
# Ray gives every machine these; nobody asks for them.
_RAYS_OWN = ("node:", "memory", "object_store_memory", "accelerator_type:")


@dataclass(frozen=True, slots=True)
class RayTerms:
    """`bundles` are the processes for Ray, by name, with the resources that each needs; others run
    here. `ambient` is the environment of this process: machines get only what differs from it.
    Gateways are reached at `listen_host`."""

    address: str
    placement: str
    patience_s: float
    bundles: Mapping[str, Mapping[str, float]]
    listen_host: str
    ambient: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Machine:
    """One of the Ray cluster, with all that it has, used or not."""

    address: str
    resources: Resources


def why_unplaced(bundles: Mapping[str, Resources], machines: Sequence[Machine], spread: str) -> str:
    """One sentence for everybody who waits, or a list of who cannot be placed at all."""
    fits_nowhere = {
        name: needs
        for name, needs in bundles.items()
        if not any(_has(machine.resources, needs) for machine in machines)
    }
    if fits_nowhere:
        wants = "; ".join(f"{name} needs {spelled(needs)}" for name, needs in fits_nowhere.items())
        return (
            f"no machine has all that a process needs: {wants}. There are {_spelled_all(machines)}"
        )
    if spread == "strict_spread" and len(machines) < len(bundles):
        return (
            f"placement strict_spread wants a machine for each of {len(bundles)} processes, and "
            f"there are {len(machines)}: {_spelled_all(machines)}"
        )
    left = _left_over(bundles, machines)
    if left:
        wants = "; ".join(f"{name} ({spelled(bundles[name])})" for name in left)
        return f"no room is left for {wants}. There are {_spelled_all(machines)}"
    return (
        "the machines would have room, but others use them, or they are not free yet: "
        f"{_spelled_all(machines)}"
    )


def unreachable(listen_host: str, machines: Sequence[Machine]) -> str:
    """Why workers on these machines cannot reach a gateway that listens at this address; empty if
    they can, or if it is a name."""
    try:
        host = ipaddress.ip_address(listen_host)
    except ValueError:
        return ""
    if host.is_unspecified:
        return f"listen: {host} is no address that workers could be told; write this machine's own"
    away = [machine.address for machine in machines if not _is_loopback(machine.address)]
    if host.is_loopback and away:
        return (
            f"listen: nobody on {away[0]} reaches {host}; write the address of this machine "
            "that the others reach"
        )
    return ""


def spelled(resources: Resources) -> str:
    """As `2 CPU, 1 prefill_node`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _spelled_all(machines: Sequence[Machine]) -> str:
    if not machines:
        return "no machines"
    return "; ".join(
        f"{machine.address} with {spelled(_asked_for(machine.resources)) or 'nothing'}"
        for machine in machines
    )


def _asked_for(resources: Resources) -> Resources:
    return {
        name: amount for name, amount in sorted(resources.items()) if not name.startswith(_RAYS_OWN)
    }


def _has(resources: Resources, needs: Resources) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _left_over(bundles: Mapping[str, Resources], machines: Sequence[Machine]) -> list[str]:
    """Who finds no room when everybody takes the first machine that has some."""
    free = [dict(machine.resources) for machine in machines]
    left = []
    for name, needs in bundles.items():
        place = next((each for each in free if _has(each, needs)), None)
        if place is None:
            left.append(name)
            continue
        for key, amount in needs.items():
            place[key] -= amount
    return left


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
