"""How evenly teams that wait are served: 20,000 requests of real clients' rates and lengths.

Played through the product's queue and placement over one modelled engine that gets three times what
it carries, so that teams wait; weights of 1 to 4. Wanted: Jain's index of the weighted service of
the teams that waited throughout a window of 90 s of at least 0.99, and a service gap of any two
waiting teams within the bound printed beside it. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inferd.capacity.fairness import MEASURED_S, fairness
from inferd.capacity.servegen import servegen
from inferd.capacity.simulate import ENGINES, Scenario, simulate

OVERLOAD = 3.0
JAIN_MIN = 0.99
SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "traces" / "servegen_rates.csv.gz"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rates", type=Path, nargs="?", default=SAMPLE, help="servegen_rates.csv")
    options.add_argument("--model", default="m-large", help="whose clients")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    stream = servegen(chosen.rates, chosen.model)
    kind = ENGINES["8b"]
    work = sum(
        one.prompt_tokens + kind.cost.output_weight(one.prompt_tokens) * one.output_tokens
        for one in stream.arrivals
    )
    spread_s = len(stream.arrivals) / stream.rate
    speed = OVERLOAD * 1e3 / kind.cost.b_ms / (work / spread_s)
    teams = sorted({one.team for one in stream.arrivals})
    weights = {team: 1 + number % 4 for number, team in enumerate(teams)}
    run = simulate(
        Scenario(stream, kind, 1, refuse_late=False, speed=speed, weights=weights, warm=0.0)
    )
    found = fairness(run)
    even, within = found.worst_jain >= JAIN_MIN, found.gap <= found.bound
    if chosen.json:
        names = ("windows", "worst_jain", "mean_jain", "teams_mean", "gap", "bound", "pairs")
        row = {name: getattr(found, name) for name in names}
        print(json.dumps({"requests": len(run.served), "teams": len(teams), **row}))
    else:
        print(f"{len(run.served):,} requests of {len(teams)} teams, weights 1 to 4")
        print(
            f"windows of {MEASURED_S:.0f} s with teams that wait throughout: {found.windows},"
            f" {found.teams_mean:.1f} teams each"
        )
        print(f"Jain's index, worst     {found.worst_jain:9.4f}  wanted {JAIN_MIN}  {_mark(even)}")
        print(f"Jain's index, mean      {found.mean_jain:9.4f}")
        print(f"widest service gap      {found.gap:9,.0f}  of {found.pairs:,} pairs that wait")
        print(f"  the bound beside it   {found.bound:9,.0f}  {_mark(within)}")
    return 0 if even and within and found.windows else 1


def _mark(good: bool) -> str:  # noqa: FBT001 - the only argument
    return "ok" if good else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
