"""The long storms: python -m tests.chaos --seeds 6 --minutes 5 [--only shape] [--faults 100000]

Each seed takes the next shape of cluster: the same load calm, then with mishaps. Ends with status 1
if any law was broken; the report and its pictures lie in the folder `--output`.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import deque
from pathlib import Path

from tests.chaos.accelerated import Tally, play_until
from tests.chaos.accelerated import report as told_of
from tests.chaos.asks import catalogue
from tests.chaos.namespaces import possible
from tests.chaos.report import Chapter, write_report
from tests.chaos.run import Weather, drawn, expected_of, one_storm, up
from tests.chaos.shapes import ON_A_NETWORK, PLAIN, WITH_TIERS, Shape

QUESTIONS = 32


def shapes(only: str) -> list[Shape]:
    """Those whose names hold `only`; a host for each process where this system can."""
    found = [*PLAIN, *WITH_TIERS, *(ON_A_NETWORK if possible() else ())]
    return [shape for shape in found if only in shape.name]


def chapter(shape: Shape, seed: int, weather: Weather, output: Path) -> Chapter:
    """One cluster from its start to its end. What ends it early is told, not raised; the logs of a
    cluster that broke a law are kept."""
    told = Chapter(shape, seed)
    asks = catalogue(seed, QUESTIONS)
    expected = expected_of(asks)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with up(shape, Path(folder), seed) as place:
                told.calm = one_storm(place, asks, expected, (), weather)
                told.storm = one_storm(place, asks, expected, drawn(shape, seed, weather), weather)
                if told.broken:
                    keep_logs(place[1].state, output / f"logs-{seed}")
        except AssertionError:
            told.left = traceback.format_exc()
    return told


def keep_logs(state: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in state.glob("*.log"):
        shutil.copy(log, folder)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=1.0, help="of load, calm and again")
    options.add_argument("--rate", type=float, default=4.0, help="requests a second")
    options.add_argument("--every-s", type=float, default=3.0, help="between mishaps, on average")
    options.add_argument("--only", default="", help="shapes with this in their name")
    options.add_argument("--faults", type=int, default=0, help="accelerated ones besides")
    options.add_argument("--output", type=Path, default=Path("results/chaos"))
    wanted = options.parse_args()
    weather = Weather(60 * wanted.minutes, wanted.rate, wanted.every_s)
    among = shapes(wanted.only)
    chapters = []
    for index in range(wanted.seeds):
        seed = wanted.first_seed + index
        chapters.append(chapter(among[seed % len(among)], seed, weather, wanted.output))
        write_report(chapters, wanted.output)
        last = chapters[-1]
        hit = len(last.storm.done) if last.storm else 0
        print(f"{last.shape.name}, seed {seed}: {hit} mishaps, {len(last.broken)} laws broken")
        for problem in last.broken:
            print(f"  {problem[:2000]}")
    began_s = time.monotonic()
    tally = deque([Tally(), *play_until(wanted.faults, wanted.first_seed)], maxlen=1)[0]
    words = told_of(tally, time.monotonic() - began_s) if wanted.faults else ""
    report = write_report(chapters, wanted.output, words and f"```\n{words}\n```")
    print(f"{words}\nreport: {report}")
    return 1 if tally.broken or any(each.broken for each in chapters) else 0


if __name__ == "__main__":
    sys.exit(main())
