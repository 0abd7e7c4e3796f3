"""The API keys of a cluster's clients, wherever its file says they stand."""

from tandem.api.config import KeyFile
from tandem.api.key_ring import KeyRing
from tandem.config.api_options import api_config
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import gateway_options
from tandem.config.environment import secret_lines
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration


def tenant_keys(cluster: Cluster) -> dict[str, str]:
    """Whose keys are those in the cluster file itself, and in the variables that it names. Raises
    `InvalidConfiguration` for a variable that is not set, and for a key that two tenants have."""
    owners: dict[str, str] = {}
    for tenant in cluster.tenants:
        variable = tenant.api_keys_env
        for key in (*tenant.api_keys, *(secret_lines(variable) if variable else ())):
            if owners.setdefault(key, tenant.name) != tenant.name:
                raise InvalidConfiguration(
                    f"tenant {tenant.name}: one of its keys is already that of another tenant"
                )
    return owners


def tenant_key_files(cluster: Cluster) -> tuple[KeyFile, ...]:
    return tuple(
        KeyFile(tenant.api_keys_file, tenant.name)
        for tenant in cluster.tenants
        if tenant.api_keys_file
    )


def has_client_keys(cluster: Cluster, options: ServeOptions) -> bool:
    """Whether clients need a key, with these options of the gateways."""
    named = bool(options.api_key or options.api_key_file)
    return named or any(tenant.has_keys for tenant in cluster.tenants)


def check_client_keys(cluster: Cluster) -> None:
    """Raises `InvalidConfiguration` when a gateway could not read them."""
    options = gateway_options(cluster, ())
    KeyRing(api_config(options, (), tenant_keys(cluster), tenant_key_files(cluster)))
