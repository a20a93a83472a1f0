"""Whether "95 %" is true: 200 simulated servers a scenario (tests/method/simulated_servers.py)."""

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "method")]

from simulated_servers import SCENARIOS, judge, within_two  # noqa: E402

SERVERS = 200


def main(servers=SERVERS):
    head = (
        "scenario",
        "law",
        "none",
        "bound",
        "too many",
        "no warning",
        "+-2 covers",
        "so of C*",
        "too few",
    )
    print(f"{'':38}" + "  ".join(f"{each:>10}" for each in head[1:]))
    for config in (True, False):
        print("with config.json" if config else "without config.json")
        covered = []
        for scenario in SCENARIOS:
            with tempfile.TemporaryDirectory() as folder:
                found = judge(scenario, Path(folder), servers, config=config)
            if scenario.holds:
                covered += found.covered
            cells = (
                "holds" if scenario.holds else "broken",
                found.none,
                found.bound,
                f"{found.not_fitting / max(1, found.answers):.1%}",
                found.unwarned,
                f"{found.coverage:.0%}",
                f"{within_two(found.point):.0%}",
                f"{found.smallness:.2%}",
            )
            print(f"  {scenario.name:36}" + "  ".join(f"{each:>10}" for each in cells), flush=True)
        print(f"  all where the law holds: {within_two(covered):.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
