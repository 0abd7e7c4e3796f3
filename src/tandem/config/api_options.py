"""The HTTP front of a server, from its options and the tenants of a cluster file: limits, the API
keys of clients, and whether it may listen where others reach it."""

import ipaddress
from collections.abc import Mapping

from tandem.api.config import (
    ApiConfig,
    BatchConfig,
    ConnectionLimits,
    KeyFile,
    ResponseCacheConfig,
    ResponseStoreConfig,
)
from tandem.api.key_ring import KeyRing
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import gateway_options
from tandem.config.environment import secret_lines
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration


def api_config(
    options: ServeOptions,
    api_keys: tuple[str, ...],
    tenants: Mapping[str, str] | None = None,
    tenant_files: tuple[KeyFile, ...] = (),
    cached_tenants: frozenset[str] | None = None,
) -> ApiConfig:
    """`api_keys` count where the options name none; `tenants` are by key, and more of their keys
    stand in `tenant_files`. Answers are kept for `cached_tenants` (None: for everybody)."""
    return ApiConfig(
        api_keys=options.api_key or api_keys,
        tenants=tenants or {},
        key_files=(*map(KeyFile, options.api_key_file), *tenant_files),
        operator_key_files=tuple(map(KeyFile, options.operator_key_file)),
        allowed_origins=options.allowed_origins,
        allowed_hosts=_allowed_hosts(options),
        max_body_bytes=options.max_body_mib << 20 or None,
        answer_bytes=options.max_answers_mib << 20,
        max_choices=options.max_choices,
        max_scaling_samples=options.max_scaling_samples,
        parse_special_tokens=options.parse_special_tokens,
        response_cache=ResponseCacheConfig(options.response_cache_mib << 20, cached_tenants),
        response_store=ResponseStoreConfig(
            options.response_store_mib << 20,
            options.max_stored_responses,
            options.response_store_hours * 3600.0,
        ),
        batches=BatchConfig(
            options.batch_directory,
            options.batch_store_mib << 20,
            options.max_batch_files,
            options.max_batches,
            options.max_batch_file_mib << 20,
            options.max_batch_lines,
            options.batch_keep_hours * 3600.0,
            options.max_batch_requests,
        ),
        metrics_prefix=options.metrics_prefix,
        log_content_bytes=options.access_log_content_kib << 10,
        connections=ConnectionLimits(
            head_bytes=options.max_head_kib << 10,
            head_fields=options.max_head_fields,
            head_timeout_s=options.head_timeout_s,
            connections=options.max_connections,
            connections_per_address=options.max_connections_per_address,
        ),
    )


def check_exposure(options: ServeOptions, *, has_keys: bool) -> str:
    """A warning to be shown, or nothing. Raises `InvalidConfiguration` for a server that whoever
    reaches this machine could use, unless that was asked for."""
    if has_keys or is_loopback(options.host):
        return ""
    if options.allow_unauthenticated:
        return (
            "Without an API key: whoever reaches this machine, which listens on "
            f"{options.host or 'any address'}, can use the model and see its metrics."
        )
    raise InvalidConfiguration(
        f"--host {options.host or repr('')} can be reached from other machines, and there is "
        "no API key; give one (--api-key or TANDEM_API_KEY), listen on 127.0.0.1, or allow "
        "everybody (--allow-unauthenticated)"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there. A name may mean anything, but for
    `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _allowed_hosts(options: ServeOptions) -> tuple[str, ...]:
    """On a loopback address the names of others are made up by web pages (DNS rebinding)."""
    own = ("localhost",) if is_loopback(options.host) else ()
    return (*own, *options.allowed_hosts)


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


def cached_tenants(cluster: Cluster) -> frozenset[str] | None:
    """Whose answers are kept; everybody's where there are no tenants."""
    if not cluster.tenants:
        return None
    return frozenset(tenant.name for tenant in cluster.tenants if tenant.response_cache)


def has_client_keys(cluster: Cluster, options: ServeOptions) -> bool:
    """Whether clients need a key, with these options of the gateways."""
    named = bool(options.api_key or options.api_key_file)
    return named or any(tenant.has_keys for tenant in cluster.tenants)


def check_client_keys(cluster: Cluster) -> None:
    """Raises `InvalidConfiguration` when a gateway could not read them."""
    options = gateway_options(cluster, ())
    KeyRing(api_config(options, (), tenant_keys(cluster), tenant_key_files(cluster)))
