"""The one place that reads environment variables and asks the system what this machine has: cores,
memory, folders, secrets in variables."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tandem
from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.names import is_gguf

# What comes with Tandem: models, example clusters, datasheets of devices.
BUNDLED = Path(tandem.__file__).parent / "bundled"
BUNDLED_MODEL = BUNDLED / "tandem-mini"
BUNDLED_DRAFT = BUNDLED / "tandem-mini-draft"
BUNDLED_MEDUSA = BUNDLED / "tandem-mini-medusa"
BUNDLED_EAGLE = BUNDLED / "tandem-mini-eagle"
BUNDLED_MODELS = (BUNDLED_MODEL, BUNDLED_DRAFT)
# How often a thread of OpenMP looks whether its turn has come before it sleeps.
_SPINS = "2000"
# Of traces, and where OpenTelemetry's SDK is told otherwise.
_QUEUED_SPANS, _QUEUE_VARIABLE = 8192, "OTEL_BSP_MAX_QUEUE_SIZE"
# As version 1 of control groups writes it.
_NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What processes on this machine may use. Memory in bytes, as it is now; that of GPUs is of the
    first, and 0 without one. `gpus` are their names."""

    cores: int
    free_memory_bytes: int
    gpu_total_bytes: int = 0
    gpu_free_bytes: int = 0
    api_keys: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def has_cuda(self) -> bool:
        return self.gpu_total_bytes > 0


def host_facts() -> MachineFacts:
    """Without its GPUs, which torch alone knows (`config.resolve.machine_facts`)."""
    key = os.environ.get("TANDEM_API_KEY", "")
    return MachineFacts(_cores(), _free_memory_bytes(), api_keys=(key,) if key else ())


def bound_spinning() -> None:
    """Have threads of OpenMP that wait for each other sleep soon, here and in all processes that
    this one starts, unless the environment says how they wait. By default they look for some
    milliseconds, and where another program wants the core, whoever they wait for does not get it.
    To be called before torch is imported, which brings OpenMP."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def may_have_gpu() -> bool:
    """False only where there surely is none; torch knows more, after seconds."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def runtime_directory() -> Path:
    """Where this user's processes keep files while they run."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    # One of another user, as `su` leaves it behind, is not for this one's files.
    if given and Path(given).is_dir() and Path(given).stat().st_uid == os.geteuid():
        return Path(given) / "tandem"
    return Path(f"/tmp/tandem-{os.geteuid()}")


def cache_directory() -> Path:
    """Where this user's processes keep files that are of use to the next start."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "tandem"


def secret_lines(variable: str) -> tuple[str, ...]:
    """What stands in this variable, one a line. Raises `InvalidConfiguration` when nothing does."""
    lines = [line.strip() for line in os.environ.get(variable, "").splitlines()]
    if not any(lines):
        raise InvalidConfiguration(f"the variable {variable} of the environment is not set")
    return tuple(line for line in lines if line)


def secret_line(variable: str | None) -> str:
    """The first line of the same; empty where no variable is named."""
    return secret_lines(variable)[0] if variable else ""


def queued_spans() -> int:
    """How many spans of traces may wait to be sent. Raises `InvalidConfiguration`."""
    given = os.environ.get(_QUEUE_VARIABLE, "").strip()
    if given and not (given.isdecimal() and int(given)):
        raise InvalidConfiguration(f"{_QUEUE_VARIABLE}: expected a number of spans, got {given}")
    return int(given or _QUEUED_SPANS)


def replace_process(command: list[str], **private: str) -> None:
    """Begin this process anew with these words, and variables that only it takes up
    (`taken_variable`). Comes back only where the system does not let it."""
    variables = {f"{name}_{os.getpid()}": value for name, value in private.items()}
    sys.stdout.flush()
    with suppress(OSError):
        os.execve(sys.executable, command, {**os.environ, **variables})


def taken_variable(name: str) -> str:
    """What this very process left itself under that name, and does not pass on; empty for none."""
    return os.environ.pop(f"{name}_{os.getpid()}", "")


def child_environment(**changed: str) -> dict[str, str]:
    """The environment of a process that this one starts."""
    return {**os.environ, **changed}


def _cores() -> int:
    """Cores this process may run on; a container's quota of processor time counts as well."""
    allowed = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if allowed else os.cpu_count() or 1
    quotas = [_numbers(group / "cpu.max") for group in control_groups()]
    return min([cores, *(max(1, quota[0] // quota[1]) for quota in quotas if len(quota) == 2)])


def _free_memory_bytes() -> int:
    """Free memory, or what a control group's limit leaves when that is less (a container)."""
    free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes = int(line.split()[1]) * 1024
    return min([free_bytes, *map(spare_bytes, control_groups())])


def control_groups(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> list[Path]:
    """The folders of the control groups that this process is in, its own and all above it: each may
    have a limit. Of version 2, and of version 1 those for memory."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    groups: dict[Path, None] = {}
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root = mounted
        elif "memory" in controllers.split(","):
            root = mounted / "memory"
        else:
            continue
        own = root / path.strip("/")
        # In a container the path may be the host's, of which the container sees its own part only.
        for group in (own, *own.parents):
            if group.is_dir():
                groups[group] = None
            if group == root:
                break
    return list(groups)


def spare_bytes(group: Path) -> int:
    """What the group's limit leaves. Pages of files count as free: they are given back when memory
    is wanted, as those of a checkpoint that was just read."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit_bytes, used_bytes = _numbers(group / limit), _numbers(group / used)
        if limit_bytes:
            spare = limit_bytes[0] - sum(used_bytes[:1]) + _file_bytes(group / "memory.stat")
            return max(0, min(spare, limit_bytes[0]))
    return _NO_LIMIT


def _file_bytes(stat: Path) -> int:
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        return 0
    figures = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
    # In version 1 the figures of a group alone leave out those below it.
    return sum(
        figures.get(f"total_{name}", figures.get(name, 0))
        for name in ("active_file", "inactive_file")
    )


def _numbers(file: Path) -> list[int]:
    """The numbers in a file of a control group; none without such a limit."""
    try:
        words = file.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []


def bundled_directory(name: str) -> Path | None:
    """Of what is bundled under this name, unless a directory of that name is at hand."""
    bundled = (*BUNDLED_MODELS, BUNDLED_MEDUSA, BUNDLED_EAGLE)
    found = {each.name: each for each in bundled}.get(name)
    return None if found is None or Path(name).is_dir() else found


def tokens_directory(directory: Path, load_format: str) -> Path:
    """Where the tokenizer of a model lies. A dummy model may be a config.json alone; then it has
    the bundled model's tokens."""
    has_tokens = load_format != "dummy" or is_gguf(directory)
    has_tokens = has_tokens or (directory / "tokenizer.json").exists()
    return directory if has_tokens else BUNDLED_MODEL
