"""Whose machines the processes of a cluster run on, as the cluster file says."""

import importlib
from collections.abc import Callable
from importlib.util import find_spec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.placement import bundles, on_ray
from tandem.config.environment import child_environment
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.launcher import Launcher, LocalLauncher
from tandem.live.launching.supervisor import Notice


def make_launcher(cluster: Cluster, heard: Callable[[Notice], None]) -> Launcher:
    """Not open yet. Raises `InvalidConfiguration`."""
    if not on_ray(cluster):
        return LocalLauncher()
    check_launcher(cluster)
    # An extra that takes a second to import.
    module = importlib.import_module("tandem.live.launching.ray_launcher")
    terms = module.RayTerms(
        address=cluster.ray.address,
        placement=cluster.ray.placement,
        patience_s=cluster.ray.timeout_s,
        bundles=bundles(cluster),
        listen_host=listen_host(cluster),
        ambient=child_environment(),
    )
    launcher: Launcher = module.RayLauncher(terms, lambda name, text: heard(Notice(name, text)))
    return launcher


def check_launcher(cluster: Cluster) -> None:
    """Raises `InvalidConfiguration` when what the launcher needs is not installed."""
    if on_ray(cluster) and find_spec("ray") is None:
        raise InvalidConfiguration(
            "launcher: ray needs the package ray; pip install 'tandem[ray]', here and on every "
            "machine of the Ray cluster"
        )


def listen_host(cluster: Cluster) -> str:
    """Where workers reach the gateways, without the port."""
    host, _, port = cluster.listen.rpartition(":")
    return host or port
