"""An environment for each group of clients, apart from the project's: in `.clients`, made anew when
what it is made of has changed. What stands on Tandem itself runs in the project's own."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".clients"
SCRIPTS = HERE / "scripts"
NODE = "node"
PROJECT = "project"


def can_be_made(environment: str) -> bool:
    """Node.js itself comes as a package, but not the program that installs packages."""
    return environment != NODE or shutil.which("npm") is not None


def command_of(script: str, environment: str) -> list[str]:
    """What runs this script; its environment is made if need be."""
    if environment == PROJECT:
        return [sys.executable, str(SCRIPTS / script)]
    return _node_command(script) if environment == NODE else _python_command(script, environment)


def _python_command(script: str, environment: str) -> list[str]:
    folder, requirements = ENVIRONMENTS / environment, HERE / "requirements" / f"{environment}.txt"
    python = folder / "bin" / "python"
    if not _is_current(folder, requirements):
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--requirement", str(requirements)])
        _note_current(folder, requirements)
    return [str(python), str(SCRIPTS / script)]


def _node_command(script: str) -> list[str]:
    folder, lock = ENVIRONMENTS / NODE, HERE / NODE / "package-lock.json"
    if not _is_current(folder, lock):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(HERE / NODE, folder)
        _run(["npm", "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)])
        _note_current(folder, lock)
    # A script of Node.js finds packages above the folder that it lies in, and nowhere else.
    for source in SCRIPTS.glob("*.mjs"):
        shutil.copy(source, folder)
    return [str(folder / "node_modules" / ".bin" / "node"), str(folder / script)]


def _run(command: list[str]) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


def _is_current(folder: Path, made_of: Path) -> bool:
    stamp = folder / "made-of"
    return stamp.exists() and stamp.read_text() == _digest(made_of)


def _note_current(folder: Path, made_of: Path) -> None:
    (folder / "made-of").write_text(_digest(made_of))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
