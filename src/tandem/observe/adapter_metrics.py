"""The adapters of workers as Prometheus metrics: which run and wait, and what memory holds."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from tandem.facts.adapter import AdapterFigures, AdapterMemory, named_adapters
from tandem.facts.metrics import Figures, Kind
from tandem.observe.registry import COUNTER, GAUGE

# What adapters are called, by their digests.
AdapterNames = Callable[[], Mapping[str, str]]
_MEMORY: Sequence[tuple[Kind, str, str, Callable[[AdapterMemory], float]]] = (
    (GAUGE, "lora_adapters_loaded", "Adapters in memory", lambda m: m.held),
    (GAUGE, "lora_memory_bytes", "Bytes of these adapters", lambda m: m.held_bytes),
    (
        GAUGE,
        "lora_memory_limit_bytes",
        "Bytes of adapters that may stay in memory",
        lambda m: m.limit_bytes,
    ),
    (COUNTER, "lora_loads", "Times that an adapter was read into memory", lambda m: m.loads),
    (COUNTER, "lora_evictions", "Adapters that left memory for others", lambda m: m.evictions),
)


def adapter_metrics(
    labels: tuple[str, ...],
    workers: Sequence[tuple[tuple[str, ...], AdapterFigures]],
    names: Mapping[str, str],
) -> Iterator[Figures]:
    """Of workers with adapters, each with its values of these labels; nothing without any. As vLLM
    has it, one metric names in its labels which adapters run and wait."""
    if not workers:
        return
    yield Figures(
        GAUGE,
        "lora_requests_info",
        "Always 1: its labels name the adapters of running and waiting requests",
        (*labels, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        [
            (
                (
                    *values,
                    str(figures.most_running),
                    ",".join(named_adapters(figures.running, names)),
                    ",".join(named_adapters(figures.waiting, names)),
                ),
                1,
            )
            for values, figures in workers
        ],
    )
    for kind, name, text, read in _MEMORY:
        samples = [(values, read(figures.memory)) for values, figures in workers]
        yield Figures(kind, name, text, labels, samples)
