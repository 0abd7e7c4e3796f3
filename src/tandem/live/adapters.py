"""The adapters that a server offers under names of their own: read and checked when they are named,
and shared with the other gateways of a machine by a file.

Loads no weights, so nothing it imports may import torch.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tandem.config.options import ServeOptions
from tandem.facts.adapter import ServedAdapter
from tandem.facts.errors import InvalidConfiguration, InvalidRequest, NotFound
from tandem.facts.model import ModelSpec
from tandem.kernels.native import file_lock
from tandem.live.clock import wall_clock_s
from tandem.models.adapters import CONFIG_NAME, read_adapter

logger = logging.getLogger(__name__)

_NAME_CHARS = 256

# Whose file it is by content: others replace it by another one.
_Signature = tuple[int, int]


def lora_modules(modules: Sequence[str]) -> dict[str, Path]:
    """Names and folders of adapters as options say them: `name=path` each, or vLLM's JSON object
    with both. Raises `InvalidConfiguration`."""
    found: dict[str, Path] = {}
    for module in modules:
        name, _, path = module.partition("=")
        if module.startswith("{"):
            name, path = _named_in_json(module)
        if not (name and path):
            raise InvalidConfiguration(f"lora-modules: expected name=path, got {module!r}")
        if name in found:
            raise InvalidConfiguration(f"lora-modules: {name} is named twice")
        found[name] = Path(path).expanduser()
    return found


def wanted_modules(options: ServeOptions) -> dict[str, Path]:
    """Of one server, as `lora_modules`. Raises `InvalidConfiguration` where it serves none."""
    modules = lora_modules(options.lora_modules)
    if modules and not options.enable_lora:
        raise InvalidConfiguration("lora-modules needs --enable-lora")
    return modules


def check_adapters(options: ServeOptions, spec: ModelSpec) -> None:
    """All of them are there, and fit the model. Raises `InvalidConfiguration`."""
    for path in wanted_modules(options).values():
        read_adapter(path, spec, options.max_lora_rank)


def _named_in_json(text: str) -> tuple[str, str]:
    """Empty where there is none. What else it says, such as the base model, follows from the
    adapter's files."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return "", ""
    return fields.get("name", ""), fields.get("path", "")


def names_in(file: Path) -> Mapping[str, str]:
    """What the gateways that share this file call their adapters, by digest; empty where there is
    no such file, or none that can be read."""
    try:
        return _names(_in_file(file))
    except (OSError, msgspec.MsgspecError):
        return {}


class AdapterRegistry:
    """The port `AdapterModels` over adapters of the model `spec`, of rank `most_rank` at most.
    `taken` are the names of the model itself. What is loaded and unloaded stands in `file`, where
    there is one, for every gateway that looks there, and for those that start later."""

    def __init__(
        self, spec: ModelSpec, most_rank: int, taken: Collection[str], file: Path | None = None
    ) -> None:
        self._spec, self._most_rank = spec, most_rank
        self._taken = frozenset(taken)
        self._file = file
        self._served: dict[str, ServedAdapter] = {}
        self._seen: _Signature | None = None

    @property
    def served(self) -> Mapping[str, ServedAdapter]:
        """By name, in the order in which they came; as any gateway has them now."""
        self._look()
        return self._served

    def names(self) -> Mapping[str, str]:
        """What they are called, by their digests; of several names the first."""
        return _names(self.served.values())

    def named(self, name: str) -> ServedAdapter | None:
        """See the port."""
        return self.served.get(name)

    def begin(self, modules: Mapping[str, Path]) -> None:
        """Have these from the start. Where another gateway has begun already, or this one in an
        earlier process, what has become of them since stands in the file. Raises
        `InvalidConfiguration`."""
        with self._alone():
            if self._seen is not None:
                return
            for name, path in modules.items():
                if name in self._taken:
                    problem = f"lora-modules: {name} is the name of the model itself"
                    raise InvalidConfiguration(problem)
                self._served[name] = self._read(name, path)

    async def load(self, name: str, path: str) -> ServedAdapter:
        """See the port."""
        if not 0 < len(name) <= _NAME_CHARS or not name.isprintable():
            raise InvalidRequest("lora_name", f"must have 1 to {_NAME_CHARS} printable characters")
        if not Path(path).is_absolute():
            raise InvalidRequest("lora_path", "must be an absolute path on the server")
        self._check_free(name)
        try:
            served = await asyncio.to_thread(self._read, name, Path(path))
        except InvalidConfiguration as error:
            problem = f"cannot be loaded: {error}"
            if not (Path(path) / CONFIG_NAME).is_file():
                raise NotFound("lora_path", problem) from error
            raise InvalidRequest("lora_path", problem) from error
        with self._alone():
            self._check_free(name)
            self._served[name] = served
        logger.warning("adapter %s was loaded from %s", name, path)
        return served

    async def unload(self, name: str) -> None:
        """See the port."""
        with self._alone():
            if name not in self._served:
                raise NotFound("lora_name", f"{name!r} is no adapter that is loaded here")
            del self._served[name]
        logger.warning("adapter %s was unloaded", name)

    def _check_free(self, name: str) -> None:
        if name in self._taken or self.named(name) is not None:
            raise InvalidRequest("lora_name", f"{name!r} is the name of another model here")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other gateway changes the file within the block; what it changes is written at its
        end."""
        if self._file is None:
            yield
            return
        with file_lock(self._file.with_suffix(".lock")):
            self._look()
            yield
            self._write(self._file)

    def _read(self, name: str, path: Path) -> ServedAdapter:
        files = read_adapter(path, self._spec, self._most_rank)
        return ServedAdapter(name, files.adapter, wall_clock_s())

    def _look(self) -> None:
        """At the file, where it is another one than it was: a microsecond otherwise."""
        if self._file is None:
            return
        try:
            found = self._file.stat()
            signature = found.st_ino, found.st_mtime_ns
            if signature == self._seen:
                return
            content = _in_file(self._file)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning(
                "%s cannot be read (%s); the adapters stay as they are", self._file, error
            )
            return
        self._seen = signature
        self._served = {each.name: each for each in content}

    def _write(self, file: Path) -> None:
        """The file appears whole or not at all."""
        half = file.with_suffix(".new")
        half.write_bytes(msgspec.json.encode(list(self._served.values())))
        found = half.stat()
        half.replace(file)
        self._seen = found.st_ino, found.st_mtime_ns


def _in_file(file: Path) -> list[ServedAdapter]:
    return msgspec.json.decode(file.read_bytes(), type=list[ServedAdapter])


def _names(served: Iterable[ServedAdapter]) -> dict[str, str]:
    names: dict[str, str] = {}
    for each in served:
        names.setdefault(each.adapter.digest, each.name)
    return names
