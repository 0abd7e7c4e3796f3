"""What is said when a server or a cluster has started: who drafts for the model, which adapters are
served beside it, and where gRPC is spoken."""

from collections.abc import Collection
from pathlib import Path

from tandem.config.options import Proposers, ServeOptions

# By proposer; those with weights of their own are followed by their name.
_WHO: dict[Proposers, str] = {
    "draft": "draft model",
    "medusa": "medusa heads",
    "eagle": "eagle head",
}


def beside_the_model(
    options: ServeOptions,
    adapters: Collection[str],
    *,
    drafts_from: str = "",
    adapter_bytes: int | None = None,
) -> tuple[str, ...]:
    """A line each. `drafts_from` is where the weights of what drafts lie, where that is known
    better than the options say; `adapters` are names, whose weights may take `adapter_bytes` on a
    worker."""
    notes = []
    if options.speculation != "none":
        notes.append(_speculation(options, drafts_from or options.speculation_model))
    if options.enable_lora:
        notes.append(_adapters(options, adapters, adapter_bytes))
    if options.grpc_port:
        notes.append(f"gRPC: {grpc_address(options)}")
    return tuple(notes)


def grpc_address(options: ServeOptions) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{host}:{options.grpc_port}"


def _speculation(options: ServeOptions, drafts_from: str) -> str:
    if options.speculation == "ngram":
        shortest, longest = options.prompt_lookup_min, options.prompt_lookup_max
        who = f"ngram, what followed the last {shortest} to {longest} tokens before"
    else:
        who = f"{_WHO[options.speculation]} {Path(drafts_from).name}".rstrip()
    far = "as many as pay" if options.speculation_adaptive else "always as many as may be"
    branches = options.speculation_branches
    where = f" in trees of {branches} branches" if branches > 1 else ""
    return f"speculation: {who}; up to {options.speculation_tokens} tokens at a time{where}, {far}"


def _adapters(options: ServeOptions, names: Collection[str], held_bytes: int | None) -> str:
    memory = "" if held_bytes is None else f", {held_bytes / (1 << 20):.0f} MiB for them"
    return (
        f"adapters: {', '.join(names) or 'none yet'}; {options.max_loras} at once, "
        f"of rank {options.max_lora_rank} at most{memory}"
    )
