"""`python -m tandem` is the `tandem` command."""

from tandem.commands.main import app

if __name__ == "__main__":
    app()
