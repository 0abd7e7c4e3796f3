"""Runs clients that others wrote against real servers: python -m tests.clients --only openai,llm

Without options all of them run, each against a server of one process and against a cluster. What
docs/clients.md says of those that ran against both is written anew. Ends with status 1 if a check
fails. Clients of Node.js are left out where there is no npm.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.clients.catalog import CLIENTS, Client
from tests.clients.environments import can_be_made, command_of
from tests.clients.page import PAGE, page, table
from tests.clients.running import Report, report_of
from tests.clients.servers import SERVERS


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", help="names of clients, with commas between")
    for kind in SERVERS:
        options.add_argument(f"--{kind}", action="store_true", help="only against this")
    chosen = options.parse_args()
    names = chosen.only.split(",") if chosen.only else [client.name for client in CLIENTS]
    kinds = [kind for kind in SERVERS if getattr(chosen, kind)] or list(SERVERS)
    if unknown := set(names) - {client.name for client in CLIENTS}:
        options.error(f"no such client: {', '.join(sorted(unknown))}")
    clients = [client for client in CLIENTS if client.name in names]
    made = [client for client in clients if can_be_made(client.environment)]
    if len(made) < len(clients):
        print("left out, because there is no npm: the clients of Node.js", flush=True)
    reports = run(made, kinds)
    print(table(reports))
    if len(kinds) == len(SERVERS):
        PAGE.write_text(page(reports, PAGE.read_text() if PAGE.exists() else ""))
    return 1 if any(each.failures for found in reports.values() for each in found.values()) else 0


def run(clients: Sequence[Client], kinds: Sequence[str]) -> dict[str, dict[str, Report]]:
    """The reports of these clients about these servers."""
    commands = {client.name: command_of(client.script, client.environment) for client in clients}
    reports: dict[str, dict[str, Report]] = {name: {} for name in commands}
    for kind in kinds:
        with SERVERS[kind]() as url:
            for name, command in commands.items():
                reports[name][kind] = found = report_of(command, url)
                print(f"{kind}: {name} {found.version}: {len(found.outcomes)} checks", flush=True)
                for each in found.failures:
                    print(f"  failed: {each.feature} ({each.check}): {each.why}", flush=True)
    return reports


if __name__ == "__main__":
    sys.exit(main())
