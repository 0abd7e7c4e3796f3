"""Checks of a cluster file before its cluster has a process or a file: model, sizes, keys,
addresses."""

import importlib
import ipaddress
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import yaml

from tandem.config.api_options import check_client_keys, check_exposure, has_client_keys
from tandem.config.checkpoints import find_checkpoint
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import (
    LiveFile,
    as_served,
    gateway_options,
    live_model,
    pool_place,
)
from tandem.config.cluster.tiers import memory_bytes, refused_sizes
from tandem.config.cluster.tree import mistake, node_at
from tandem.config.cluster.workers import PoolConfig
from tandem.config.encoders import check_encoders
from tandem.config.hardware.pools import capacity_of
from tandem.config.machine_share import on_ray, refused_placement
from tandem.config.policies import learning_of, planning_config, router_policies
from tandem.config.tracing import check_tracing
from tandem.facts.errors import InvalidConfiguration
from tandem.live.adapters import lora_modules
from tandem.live.grpc_port import try_grpc_port
from tandem.live.http_server import NoSuchHost, listen
from tandem.live.launching.state_directory import ClusterRunning, StateDirectory
from tandem.live.processes.setups import MAIN, Setups, listen_address
from tandem.models.adapters import read_adapter
from tandem.models.configuration import read_model_spec
from tandem.models.parallel import refused_division


def check_before_start(file: LiveFile, directory: StateDirectory) -> tuple[str, ...]:
    """What of the wishes is cut, for a person, a line each. Fetches the model if it is not here.
    Raises `InvalidConfiguration` or `ClusterRunning`."""
    # Whose directory it is comes out when it is claimed.
    with suppress(PermissionError):
        if directory.claimed:
            raise ClusterRunning(f"a cluster runs in {directory.path} already")
    check_wishes(file)
    _try_addresses(file)
    _find_models(file)
    setups = Setups(file.cluster)
    check_setups(file, setups, file.cluster.pools)
    wanted_bytes, free_bytes = memory_bytes(file.cluster), setups.share.host.free_memory_bytes
    if wanted_bytes > free_bytes and not setups.share.alone:
        raise mistake(
            node_at(file.tree, "tiers"),
            f"tiers: all together want {wanted_bytes / 2**30:,.1f} GiB of memory, and "
            f"{free_bytes / 2**30:,.1f} GiB are free here; give them less",
        )
    return setups.share.checked_memory()


def check_wishes(file: LiveFile) -> None:
    """What can be told without the model. Raises `InvalidConfiguration`."""
    for place, problem in refused_placement(file.cluster):
        raise mistake(node_at(file.tree, place), problem)
    check_launcher(file.cluster)
    check_client_keys(file.cluster)
    router_policies(as_served(file.cluster))
    learning_of(file.cluster)


def check_setups(file: LiveFile, setups: Setups, starting: Collection[PoolConfig]) -> None:
    """What processes with these set-ups would stumble over, of which workers of some pools are
    `starting`. Raises `InvalidConfiguration`."""
    served = as_served(file.cluster)
    with _refused_at(file, "serve.host"):
        exposure_of(file.cluster, setups.share.host.api_keys)
    with _refused_at(file, "serve.otlp_traces_endpoint"):
        check_tracing(gateway_options(file.cluster, ()), file.cluster.explain_memory_bytes)
    capacity_of(setups.at_checkpoints(served))
    planning_config(setups.at_checkpoints(served))
    _check_pool_models(file, setups)
    _check_adapters(file, setups)
    _check_encoders(file)
    for pool in file.cluster.pools:
        spec = read_model_spec(setups.own_checkpoints.get(pool.name, setups.checkpoint))
        for key, problem in refused_division(spec, pool.tensor_parallel, pool.pipeline_parallel):
            place = pool_place(file.cluster, pool, key)
            raise mistake(node_at(file.tree, place), f"pool {pool.name}: {problem}")
        if pool in starting:
            setups.worker(pool, pool.name, ())
    for place, problem in refused_sizes(file.cluster, setups.block_format().block_bytes):
        raise mistake(node_at(file.tree, place), problem)


def exposure_of(cluster: Cluster, api_keys: tuple[str, ...]) -> str:
    """A warning about who can use the cluster, or nothing; `api_keys` where its file names none.
    Raises `InvalidConfiguration` where everybody could and nobody asked for that."""
    options = gateway_options(cluster, api_keys)
    return check_exposure(options, has_keys=has_client_keys(cluster, options))


def check_launcher(cluster: Cluster) -> None:
    """Raises `InvalidConfiguration` when what the launcher needs is not installed."""
    if on_ray(cluster) and find_spec("ray") is None:
        raise InvalidConfiguration(
            "launcher: ray needs the package ray; pip install 'tandem[ray]', here and on every "
            "machine of the Ray cluster"
        )


def _check_pool_models(file: LiveFile, setups: Setups) -> None:
    """Whoever is answered by the model of a pool instead gets the answer to the same tokens. Raises
    `InvalidConfiguration`."""
    cluster = file.cluster
    if not setups.own_checkpoints or gateway_options(cluster, ()).load_format == "dummy":
        # What lies beside a dummy model need not be its own.
        return
    # Only a cluster of several models waits for tokenizers.
    load = importlib.import_module("tandem.text.tokenizer").Tokenizer.load
    spec, tokenizer = read_model_spec(setups.checkpoint), load(setups.checkpoint)
    context_tokens = cluster.max_model_len or spec.context_tokens
    for name, folder in setups.own_checkpoints.items():
        own, problem = read_model_spec(folder), ""
        if differing := load(folder).differs_from(tokenizer):
            problem = (
                f"has another {differing} than {cluster.model}; choose a model of the same family"
            )
        elif own.vocabulary_tokens < spec.vocabulary_tokens:
            problem = (
                f"knows {own.vocabulary_tokens} tokens, and {cluster.model} "
                f"{spec.vocabulary_tokens}: it cannot answer what holds the others"
            )
        elif own.context_tokens < context_tokens:
            problem = (
                f"has {own.context_tokens} positions, and requests may have {context_tokens} "
                f"tokens; set max_model_len: {own.context_tokens}"
            )
        if problem:
            pool = cluster.pool(name)
            place = pool_place(cluster, pool, "model")
            raise mistake(node_at(file.tree, place), f"pool {name}: {pool.model} {problem}")


def _check_adapters(file: LiveFile, setups: Setups) -> None:
    """They are there, and fit the cluster's model. Raises `InvalidConfiguration`."""
    options = gateway_options(file.cluster, ())
    node = node_at(file.tree, "serve.lora_modules")
    try:
        modules = lora_modules(options.lora_modules)
        if modules and not options.enable_lora:
            raise InvalidConfiguration("lora_modules needs enable_lora: true")
        for path in modules.values():
            read_adapter(path, read_model_spec(setups.checkpoint), options.max_lora_rank)
    except InvalidConfiguration as error:
        raise mistake(node, str(error)) from error


def _check_encoders(file: LiveFile) -> None:
    """They are there. Raises `InvalidConfiguration`."""
    options = gateway_options(file.cluster, ())
    if options.encoder_models:
        with _refused_at(file, "serve.encoder_models"):
            check_encoders(options.encoder_models, options.revision)


def _try_addresses(file: LiveFile) -> None:
    """Nobody else may have them, not even who shares the port of HTTP: it would be other gateways,
    and clients would come to either. Raises `InvalidConfiguration`."""
    options = gateway_options(file.cluster, ())
    try:
        listen(options.host, options.port).close()
    except InvalidConfiguration as error:
        key = "serve.host" if isinstance(error, NoSuchHost) else "serve.port"
        raise _placed(error, file, key) from error
    with _refused_at(file, "serve.grpc_port"):
        try_grpc_port(options)
    host, port = listen_address(file.cluster)
    if not port or not _is_address(host):
        return
    for index in range(file.cluster.gateways):
        try:
            listen(host, port + index).close()
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"listen: {error}") from error


def _find_models(file: LiveFile) -> None:
    """All of them, which come from the hub where they are not here. Raises
    `InvalidConfiguration`."""
    with _refused_at(file, "model"):
        revision = str(file.cluster.serve.get("revision", MAIN))
        find_checkpoint(live_model(file.cluster.model), revision)
    for pool in file.cluster.pools:
        if pool.model is not None:
            with _refused_at(file, pool_place(file.cluster, pool, "model")):
                find_checkpoint(live_model(pool.model), MAIN)


@contextmanager
def _refused_at(file: LiveFile, place: str) -> Iterator[None]:
    """Errors of the block say where in the file this value stands."""
    try:
        yield
    except InvalidConfiguration as error:
        raise _placed(error, file, place) from error


def _placed(error: InvalidConfiguration, file: LiveFile, place: str) -> InvalidConfiguration:
    """The error with the line of that value, if the file has it."""
    node = node_at(file.tree, place)
    text = str(error)
    # Of a key that is not there it is what should have it.
    is_there = not isinstance(node, yaml.MappingNode)
    return mistake(node, text) if is_there else InvalidConfiguration(text)


def _is_address(host: str) -> bool:
    """ZeroMQ takes names of network interfaces, too; whether one is free only it knows."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
