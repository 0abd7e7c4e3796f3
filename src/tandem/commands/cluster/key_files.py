"""Files with the keys of a cluster whose processes are started one by one, on machines of their
own: one file for gateways, and one for workers and operators, which could not pose as a gateway."""

import os
from pathlib import Path

import msgspec

from tandem.commands.cluster.setups import fresh_keys, without_gateway_secret
from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration
from tandem.wire.curve import KeyPair, belong_together, is_public

GATEWAY_FILE = "gateway.json"
WORKER_FILE = "worker.json"


def write_fresh_keys(folder: Path) -> tuple[Path, Path]:
    """Makes both files, which only their owner reads. Raises `InvalidConfiguration` rather than
    put new keys in the place of others."""
    keys = fresh_keys()
    files = folder / GATEWAY_FILE, folder / WORKER_FILE
    for file in files:
        if file.exists():
            raise InvalidConfiguration(f"{file} is there already; choose another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in zip(files, (keys, without_gateway_secret(keys)), strict=True):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(msgspec.json.encode(content))
    except OSError as error:
        raise InvalidConfiguration(f"cannot write {folder}: {error.strerror}") from error
    return files


def read_keys(file: Path, *, of_gateway: bool = False) -> CurveKeys:
    """Raises `InvalidConfiguration`, with `of_gateway` also for a file that lacks a gateway's
    secret."""
    try:
        keys = msgspec.json.decode(file.read_bytes(), type=CurveKeys)
    except OSError as error:
        raise InvalidConfiguration(f"--keys {file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            f"--keys {file} holds no keys of a cluster; make some with `tandem keys FOLDER`"
        ) from error
    gateways = KeyPair(keys.gateway_public, keys.gateway_secret)
    fits = belong_together(gateways) if keys.gateway_secret else is_public(keys.gateway_public)
    if not fits or not belong_together(KeyPair(keys.worker_public, keys.worker_secret)):
        raise InvalidConfiguration(
            f"--keys {file} holds keys that are spoilt, or not made together; make new ones with "
            "`tandem keys FOLDER`"
        )
    if of_gateway and not keys.gateway_secret:
        raise InvalidConfiguration(
            f"--keys {file} is for workers; a gateway needs {GATEWAY_FILE}, made with it"
        )
    return keys
