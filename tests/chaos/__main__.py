"""The long storms: python -m tests.chaos --seeds 6 --minutes 5 [--only shape] [--faults 100000]

Each seed takes the next shape of cluster: the same load calm, then with faults. Ends with status 1
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
from tests.chaos.accelerated import report as report_of_seeds
from tests.chaos.namespaces import possible
from tests.chaos.report import StormReport, write_report
from tests.chaos.run import LoadLevel, drawn, expected_of, one_storm, up
from tests.chaos.shapes import CONTROLLED, ON_A_NETWORK, PLAIN, WITH_TIERS, Shape
from tests.chaos.workload import catalogue

QUESTIONS = 32


def shapes(only: str) -> list[Shape]:
    """Those whose names hold `only`; a host for each process where this system can."""
    found = [*PLAIN, *WITH_TIERS, *CONTROLLED, *(ON_A_NETWORK if possible() else ())]
    return [shape for shape in found if only in shape.name]


def play(shape: Shape, seed: int, level: LoadLevel, output: Path) -> StormReport:
    """One cluster from its start to its end. What ends it early is in the report, not raised; the
    logs of a cluster that broke a law are kept."""
    report = StormReport(shape, seed)
    questions = catalogue(seed, QUESTIONS)
    expected = expected_of(questions)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with up(shape, Path(folder), seed) as place:
                report.calm = one_storm(place, questions, expected, (), level)
                faults = drawn(shape, seed, level)
                report.storm = one_storm(place, questions, expected, faults, level)
                if report.broken:
                    keep_logs(place[1].state, output / f"logs-{seed}")
        except AssertionError:
            report.left = traceback.format_exc()
    return report


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
    options.add_argument("--every-s", type=float, default=3.0, help="between faults, on average")
    options.add_argument("--only", default="", help="shapes with this in their name")
    options.add_argument("--faults", type=int, default=0, help="accelerated ones besides")
    options.add_argument("--output", type=Path, default=Path("results/chaos"))
    wanted = options.parse_args()
    level = LoadLevel(60 * wanted.minutes, wanted.rate, wanted.every_s)
    among = shapes(wanted.only)
    reports = []
    for index in range(wanted.seeds):
        seed = wanted.first_seed + index
        reports.append(play(among[seed % len(among)], seed, level, wanted.output))
        write_report(reports, wanted.output)
        last = reports[-1]
        hit = len(last.storm.done) if last.storm else 0
        print(f"{last.shape.name}, seed {seed}: {hit} faults, {len(last.broken)} laws broken")
        for problem in last.broken:
            print(f"  {problem[:2000]}")
    began_s = time.monotonic()
    tally = deque([Tally(), *play_until(wanted.faults, wanted.first_seed)], maxlen=1)[0]
    words = report_of_seeds(tally, time.monotonic() - began_s) if wanted.faults else ""
    report = write_report(reports, wanted.output, words and f"```\n{words}\n```")
    print(f"{words}\nreport: {report}")
    return 1 if tally.broken or any(each.broken for each in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
