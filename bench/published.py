"""Published results in the twin: what we get beside what was published, with nothing tuned to fit.

Usage: python bench/published.py [STUDY ...] [--processes N] [--first N] [--traces FOLDER]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import published_arrow
import published_mooncake
import published_startup
import published_tetri
from published_runs import Bench, Report

STUDIES: dict[str, Callable[[Bench], Report]] = {
    "mooncake-routing": published_mooncake.routing,
    "mooncake-split": published_mooncake.split,
    "mooncake-admission": published_mooncake.admission,
    "tetri": published_tetri.tetri,
    "arrow": published_arrow.arrow,
    "planner-startup": published_startup.startup,
}
TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--processes", type=int, default=1, help="simulated runs at a time")
    parser.add_argument("--first", type=int, help="only the first so many requests of each trace")
    parser.add_argument("--traces", type=Path, default=TRACES, help="the folder of recorded traces")
    asked = parser.parse_args()
    unknown = sorted(set(asked.studies) - set(STUDIES))
    if unknown:
        parser.error(f"unknown study {unknown[0]}; choose of {', '.join(STUDIES)}")
    bench = Bench(asked.traces, asked.processes, asked.first)
    for name in asked.studies or STUDIES:
        begin = time.perf_counter()
        STUDIES[name](bench).show()
        print(f"{name}: {time.perf_counter() - begin:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
