"""The `tandem` command, also as `python -m tandem`."""

from tandem.commands.late_imports import part
from tandem.commands.secret_arguments import hide_secrets
from tandem.config.environment import bound_spinning


def main() -> None:
    """Runs the command that the words name, with no secret among those that others can see."""
    hide_secrets()
    bound_spinning()
    # What the commands import takes time, in which everybody could still read the words.
    part("command line").run()


if __name__ == "__main__":
    main()
