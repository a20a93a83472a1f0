"""The planner's four launches against random ones, on measured grids of vLLM's peak.

How far C* or B* is from the answer of all rows; figures as a log prints them.
"""

import math
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from profile_grids import grids

DRAWS = 100
HALF_PER_CENT = 0.005

if __name__ == "__main__":
    print(
        f"{'grid':<32}{'launches':>9}{'planned':>10}{'of 100 random: no answer':>27}"
        f"{'> 0.5 %':>9}{'<= 0.5 %':>10}"
    )
    totals = []
    for grid in grids():
        with tempfile.TemporaryDirectory() as folder:
            config = grid.config(Path(folder))
            ours = grid.error(grid.planned(config), config)
            errors = [grid.error(plan, config) for plan in grid.random_plans(DRAWS)]
        none, good = sum(map(math.isinf, errors)), sum(error <= HALF_PER_CENT for error in errors)
        totals.append((ours, none, good))
        print(
            f"{grid.name:<32}{len(grid.launchable):>9}{ours:>10.3%}{none:>27}"
            f"{DRAWS - none - good:>9}{good:>10}",
            flush=True,
        )
    worst = max(ours for ours, *_ in totals)
    print(
        f"planned: at most {worst:.2%}; random: no answer in "
        f"{statistics.mean(none for _, none, _ in totals):.0f} %, within 0.5 % in "
        f"{statistics.mean(good for *_, good in totals):.0f} %"
    )
    if worst > HALF_PER_CENT:
        sys.exit("plan: above 0.5 %")
