"""Measures what attacks cost a real server: python -m tests.attacks --against PATH_OF_A_CHECKOUT

Each version of the source serves in processes of its own, a gateway and workers. It prints for how
long an event loop was held at most, the peak of the gateway's memory, and how long others had to
wait. Ends with status 1 where ours is beyond a limit. The machine should have nothing else to do.
"""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attacks.costs import COSTS, Cost
from tests.attacks.metered_server import OURS


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--against", type=Path, help="checkout of another version")
    options.add_argument("--only", default=",".join(COSTS), help=f"of {', '.join(COSTS)}")
    chosen = options.parse_args()
    # However this ends, the servers that it started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = chosen.only.split(",")
    if unknown := set(names) - set(COSTS):
        options.error(f"nothing is called {', '.join(sorted(unknown))}")
    checkouts = [OURS] + ([chosen.against.resolve()] if chosen.against else [])
    table = Table(title="What attacks cost", title_justify="left")
    for column in ("attack", "ours", *(["other"] if chosen.against else []), "limit"):
        table.add_column(column, justify="left" if column == "attack" else "right")
    failed = False
    for name in names:
        measured = [COSTS[name](checkout) for checkout in checkouts]
        for costs in zip(*measured, strict=True):
            table.add_row(costs[0].attack, *map(shown, costs), costs[0].limit_shown)
            failed |= costs[0].too_much
    Console(width=140).print(table)
    return int(failed)


def shown(cost: Cost) -> str:
    return f"{cost.value:,.4g} {cost.unit}" + (f" ({cost.detail})" if cost.detail else "")


if __name__ == "__main__":
    sys.exit(main())
