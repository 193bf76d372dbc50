"""`inferd simulate`: a trace through the product's own scheduler over modelled engines."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from inferd.capacity.simulate import Run, Scenario
    from inferd.capacity.workloads import Workload

POLICIES = ("predicted_ttft", "bounded_hash", "least_tokens", "round_robin")
COLUMNS = (
    ("rate", "req/s", "{:.1f}"),
    ("on_time", "on time", "{:.1%}"),
    ("refused", "refused", "{:.1%}"),
    ("of_bound", "of reuse bound", "{:.0%}"),
    ("ttft_p50", "TTFT p50", "{:.2f} s"),
    ("ttft_p95", "p95", "{:.2f} s"),
    ("short_p95", "short p95", "{:.2f} s"),
    ("tpot_p95", "TPOT p95", "{:.3f} s"),
    ("work_imbalance", "work max/mean", "{:.2f}"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(  # noqa: PLR0917 - options, given by name
    workload: Annotated[
        str,
        typer.Option(help="seedmix, b2b, day; conv, conv16k, toolmix, servegen, trace by --trace."),
    ] = "seedmix",
    trace: Annotated[
        Path | None,
        typer.Option(help="A chat trace, times and lengths, or what `inferd usage export` wrote."),
    ] = None,
    engine: Annotated[str, typer.Option(help="What is modelled: 8b or 70b.")] = "8b",
    replicas: Annotated[int, typer.Option(min=1, max=1_000, help="Engines.")] = 16,
    policy: Annotated[
        list[str] | None, typer.Option(help="Placement; give it again to compare.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests/s; default: as recorded.")] = None,
    find_capacity: Annotated[
        bool, typer.Option("--capacity", help="Find the highest rate with 95% on time.")
    ] = False,
    teams: Annotated[int, typer.Option(min=0, max=1_000, help="Spread over so many teams.")] = 0,
    weight: Annotated[
        list[str] | None, typer.Option(help="A team's weight, as team-0=4; default 1.")
    ] = None,
    rank: Annotated[
        list[str] | None, typer.Option(help="A team's rank under overload, as team-0=1; default 0.")
    ] = None,
    ttft_ms: Annotated[int, typer.Option(min=1, help="Target, prompts up to 4,096 tokens.")] = 800,
    tpot_ms: Annotated[int, typer.Option(min=1, help="Target per output token.")] = 40,
    batch: Annotated[bool, typer.Option("--batch", help="And again beside a batch.")] = False,
    no_refusals: Annotated[
        bool, typer.Option("--no-refusals", help="Let wait what cannot answer in time.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write TTFT and load over time and shares to this SVG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Try policies and sizes on a trace, without engines."""
    from inferd.capacity.simulate import ENGINES, Scenario
    from inferd.config.schema import Targets

    chosen = policy or ["predicted_ttft"]
    _known("--policy", chosen, POLICIES)
    _known("--engine", [engine], tuple(ENGINES))
    stream = _stream(workload, trace)
    if teams:
        stream = stream.teams(teams, seed=1)
    base = Scenario(
        workload=stream,
        engine=ENGINES[engine],
        replicas=replicas,
        refuse_late=not no_refusals,
        speed=(rate or stream.rate) / stream.rate,
        weights=_numbers("--weight", weight or [], least=1),
        ranks=_numbers("--rank", rank or [], least=-100),
        targets=Targets(ttft_ms=ttft_ms, tpot_ms=tpot_ms),
    )
    scenarios = [replace(base, policy=p, batch=b) for p in chosen for b in sorted({False, batch})]
    runs = [_play(one, find_capacity=find_capacity, rate_max=rate) for one in scenarios]
    _tell(runs, plot, as_json=as_json)


def _stream(workload: str, trace: Path | None) -> Workload:
    from inferd.capacity.servegen import servegen
    from inferd.capacity.workloads import load

    if workload == "servegen" and trace is not None:
        return servegen(trace)
    return load(workload, trace)


def _tell(runs: list[Run], plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        from inferd.capacity.plot import svg

        plot.write_text(svg(runs), encoding="utf-8")
    if as_json:
        import orjson

        typer.echo(orjson.dumps([_values(run) for run in runs]).decode())
    else:
        _show(runs)


def _play(scenario: Scenario, *, find_capacity: bool, rate_max: float | None) -> Run:
    from inferd.capacity.simulate import capacity
    from inferd.capacity.simulate import simulate as play

    total = len(scenario.workload.arrivals)
    live = sys.stderr.isatty()

    def progress(arrived: int) -> None:
        if live:
            print(f"\r{scenario.policy}: {arrived:,} of {total:,}", end="", file=sys.stderr)

    if find_capacity:
        run = capacity(scenario, rate_max or 40.0 * scenario.replicas)
    else:
        run = play(scenario, progress)
    if live:
        print("\r\033[K", end="", file=sys.stderr)
    return run


def _values(run: Run) -> dict[str, Any]:
    from inferd.capacity.simulate import figures
    from inferd.capacity.windows import arrivals, shares, ttft_p95

    return {
        "workload": run.scenario.workload.name,
        "policy": run.scenario.policy,
        "batch": run.scenario.batch,
        "batch_done": run.batch_done,
        "free": run.free,
        "replicas": run.scenario.replicas,
        **figures(run),
        "reasons": {str(reason): count for reason, count in run.reasons.items()},
        "shares": shares(run),
        "ttft_p95_over_time": ttft_p95(run),
        "arrivals_over_time": arrivals(run),
    }


def _show(runs: list[Run]) -> None:
    from rich.console import Console
    from rich.table import Table

    from inferd.capacity.simulate import figures
    from inferd.capacity.windows import arrivals, shares, sparkline, ttft_p95

    console = Console()
    table = Table("", *(_title(run) for run in runs))
    values = [figures(run) for run in runs]
    for key, title, form in COLUMNS:
        table.add_row(title, *(form.format(one[key]) for one in values))
    console.print(table)
    for alone, beside in itertools.pairwise(runs):
        if beside.scenario.batch:
            console.print(_batch_in_words(alone, beside))
    for run in runs:
        over_time = ttft_p95(run)
        console.print(f"\n{_title(run)}", style="bold")
        console.print(f"  arrivals  {sparkline(arrivals(run))}")
        console.print(f"  TTFT p95  {sparkline(over_time)}  to {max(over_time, default=0):.2f} s")
        for team, share in list(shares(run).items())[:8]:
            console.print(f"  {team:<12} {'█' * round(share * 50)} {share:.1%}")


def _title(run: Run) -> str:
    return run.scenario.policy + (" + batch" if run.scenario.batch else "")


def _batch_in_words(alone: Run, beside: Run) -> str:
    from inferd.capacity.batch_effect import batch_effect

    effect = batch_effect(alone, beside)
    return (
        f"{beside.scenario.policy}: the batch did {beside.batch_done:,} lines and took"
        f" {effect.filled:.1%} of what the threshold leaves free; interactive TTFT p95 moved by"
        f" {effect.ttft_p95_moved:+.1%}, TPOT p95 by {effect.tpot_p95_moved:+.1%}"
    )


def _known(option: str, given: list[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of: {', '.join(known)}.", param_hint=option)


def _numbers(option: str, given: list[str], least: int) -> dict[str, int]:
    found = {}
    for one in given:
        team, _, number = one.rpartition("=")
        if not team or not number.lstrip("-").isdigit() or int(number) < least:
            raise typer.BadParameter(f"{one!r} is not like team-0=4.", param_hint=option)
        found[team] = int(number)
    return found
