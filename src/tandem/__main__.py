"""The `tandem` command, also as `python -m tandem`."""

import importlib

from tandem.commands.hidden_words import hide_secrets


def main() -> None:
    """Runs the command that the words name, with no secret among those that others can see."""
    hide_secrets()
    # What the commands import takes time, in which everybody could still read the words.
    importlib.import_module("tandem.commands.main").run()


if __name__ == "__main__":
    main()
