"""`tandem page`: the page of a running cluster in a browser, with an operator's key."""

import webbrowser

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import NoCluster, RunningCluster, WhichCluster, find_running
from tandem.live.launching.private_directory import read_private
from tandem.live.launching.state_directory import OPERATOR_KEY_FILE


@flags
class PageOptions:
    """Whether a browser is opened."""

    print_only: bool = flag("Only print the address.", "--print", default=False)


@with_options
def page_command(which: WhichCluster, options: PageOptions) -> None:
    """Open the page of a running cluster as its operator: who does what, where requests went and
    why, latencies over time; drain workers and change their roles.

    The address has a key behind its #, which browsers send to nobody and the page forgets with its
    tab. Whoever has the address is an operator until the cluster ends.
    """
    address = operator_address(find_running(which), "cluster")
    console = terminal()
    console.print(address, soft_wrap=True, markup=False)
    if not options.print_only and not webbrowser.open(address):
        console.print("[dim]no browser could be started here; open the address in one[/dim]")


def operator_address(cluster: RunningCluster, tab: str) -> str:
    """Of this part of the page, with the key. Raises `NoCluster`."""
    file = cluster.directory.path / OPERATOR_KEY_FILE
    try:
        key = read_private(file).decode()
    except OSError as error:
        raise NoCluster(f"the operator's key cannot be read: {error.strerror or error}") from error
    return f"{cluster.record.url}/#/{tab}&key={key}"
