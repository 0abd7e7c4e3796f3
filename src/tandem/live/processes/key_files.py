"""Files with the keys of a cluster whose processes are started one by one, on machines of their
own: one for gateways, and one for each worker, or for several, which can pose neither as a gateway
nor as an operator. Beside them stands who may come in, which gateways read again when it changes.
An operator's keys each gateway makes itself, for who may read its state directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tandem.config.cluster.file import name_problem
from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration
from tandem.live.channels.keys import (
    Admitted,
    AdmittedKeys,
    KeyPair,
    PeerRole,
    belong_together,
    is_public,
    make_pair,
)
from tandem.live.processes.setups import ADMITTED_FILE, ADMITTED_HEAD, fresh_keys

GATEWAY_FILE = "gateway.json"
WORKER_FILE = "worker.json"


def write_fresh_keys(folder: Path) -> tuple[Path, ...]:
    """Makes a file of each kind, which only their owner reads, and the list of who may come in.
    Raises `InvalidConfiguration` rather than put new keys in the place of others."""
    keys = fresh_keys()
    admitted = f"{Admitted(PeerRole.WORKER, keys.worker_public, 'worker')}\n"
    gateways = CurveKeys(
        keys.gateway_public,
        gateway_secret=keys.gateway_secret,
        transfer_secret=keys.transfer_secret,
        kv_secret=keys.kv_secret,
    )
    contents = {
        folder / GATEWAY_FILE: msgspec.json.encode(gateways),
        folder / WORKER_FILE: msgspec.json.encode(keys.of_worker()),
        folder / ADMITTED_FILE: f"{ADMITTED_HEAD}{admitted}".encode(),
    }
    for file in contents:
        _refuse_existing(file)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in contents.items():
            _write_new(file, content)
    except OSError as error:
        raise InvalidConfiguration(f"cannot write {folder}: {error.strerror}") from error
    return tuple(contents)


def add_worker_keys(folder: Path, name: str) -> Path:
    """One more worker's file beside those that `write_fresh_keys` made, and its line. Raises
    `InvalidConfiguration`."""
    if problem := name_problem(name):
        raise InvalidConfiguration(f"--worker {name}: {problem}")
    cluster, file = read_gateway_keys(folder / GATEWAY_FILE), folder / f"worker-{name}.json"
    _refuse_existing(file)
    pair = make_pair()
    keys = CurveKeys(
        cluster.gateway_public,
        worker_public=pair.public,
        worker_secret=pair.secret,
        transfer_secret=cluster.transfer_secret,
        kv_secret=cluster.kv_secret,
    )
    try:
        with _rewritten(folder / ADMITTED_FILE) as lines:
            lines.append(str(Admitted(PeerRole.WORKER, pair.public, name)))
            _write_new(file, msgspec.json.encode(keys))
    except FileNotFoundError as error:
        raise InvalidConfiguration(f"there is no {error.filename}") from error
    except FileExistsError as error:
        raise InvalidConfiguration(
            f"{error.filename} is there already; where nobody else adds keys at the moment, remove "
            "it"
        ) from error
    except OSError as error:
        raise InvalidConfiguration(f"cannot write {folder}: {error.strerror}") from error
    return file


def read_gateway_keys(file: Path) -> CurveKeys:
    """Raises `InvalidConfiguration`."""
    keys = _read(file)
    if not keys.gateway_secret:
        raise InvalidConfiguration(f"--keys {file} is for workers; a gateway needs {GATEWAY_FILE}")
    _check(file, keys, KeyPair(keys.gateway_public, keys.gateway_secret))
    return keys


def read_worker_keys(file: Path) -> CurveKeys:
    """Raises `InvalidConfiguration`."""
    keys = _read(file)
    if not keys.worker_secret:
        raise InvalidConfiguration(f"--keys {file} is for gateways; a worker needs {WORKER_FILE}")
    _check(file, keys, KeyPair(keys.worker_public, keys.worker_secret))
    return keys.of_worker()


def admitted_beside(keys: Path) -> Path:
    """Who may come in, where a gateway's keys lie. Raises `InvalidConfiguration`."""
    file = keys.absolute().parent / ADMITTED_FILE
    AdmittedKeys((), file)
    return file


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise InvalidConfiguration(f"{file} is there already; choose another folder or name")


def _write_new(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)


@contextmanager
def _rewritten(file: Path) -> Iterator[list[str]]:
    """The lines of a file that is there, to be changed. It becomes another file at once, or stays
    as it was where that fails. Raises `OSError`, `FileExistsError` while somebody else does so."""
    half = file.with_name(f"{file.name}.new")
    _write_new(half, b"")
    try:
        # Not for here to judge what else stands there.
        lines = file.read_text(errors="surrogateescape").splitlines()
        yield lines
        half.write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)


def _read(file: Path) -> CurveKeys:
    try:
        return msgspec.json.decode(file.read_bytes(), type=CurveKeys)
    except OSError as error:
        raise InvalidConfiguration(f"--keys {file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            f"--keys {file} holds no keys of a cluster; make some with `tandem keys FOLDER`"
        ) from error


def _check(file: Path, keys: CurveKeys, pair: KeyPair) -> None:
    whole = bool(keys.transfer_secret and keys.kv_secret)
    if not whole or not is_public(keys.gateway_public) or not belong_together(pair):
        raise InvalidConfiguration(
            f"--keys {file} holds keys that are spoilt, or not made together; make new ones with "
            "`tandem keys FOLDER`"
        )
