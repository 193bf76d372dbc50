"""Four accounts of one day, held against each other request by request, to the token.

What clients were told, what the ledger says, what engines wrote down as they counted it, and what
`/metrics` sums up. Pure; money is the matter of `day_money`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from inferd.storage.usage import UsageRow
from scripts.soaks.chaos_clients import BROKEN, COMPLETE, ERROR, Outcome

Tokens = tuple[int, int, int]
"""Prompt, cached prompt, output."""
NOTHING: Final = (0, 0, 0)
SYSTEM: Final = "system"
"""Whose rows are the warm-ups of engines, one row for each start; they cost nothing."""
WARM_UP_REQUESTS: Final = 3
CUT, ESTIMATED, WITHOUT = "cut", "estimated", "refused or failed"


@dataclass
class Account:
    """The sums of one kind of request, by who says so."""

    requests: int = 0
    clients: Tokens = NOTHING
    ledger: Tokens = NOTHING
    engines: Tokens = NOTHING


@dataclass
class Accounts:
    """All of the day, and where two of them differ."""

    kinds: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    wrong: list[str] = field(default_factory=list)
    unbilled: int = 0
    """Attempts that nobody pays for."""
    estimated_unbilled: int = 0
    """Those of them whose engine did not tell its count."""
    untold: int = 0
    """Prompts that silent engines had read before they were ended."""
    untold_tokens: int = 0

    def sums(self) -> dict[str, dict[str, Any]]:
        return {kind: asdict(account) for kind, account in sorted(self.kinds.items())}


def add(one: Tokens, other: Tokens) -> Tokens:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def tokens_of(row: Mapping[str, Any]) -> Tokens:
    return row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]


def told(usage: Mapping[str, Any] | None) -> Tokens:
    """An answer's usage."""
    if usage is None:
        return NOTHING
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


def compare(
    outcomes: Sequence[Outcome],
    rows: Sequence[UsageRow],
    unbilled: Sequence[Mapping[str, Any]],
    counted: Mapping[str, Mapping[str, Any]],
    dead: Container[int],
) -> Accounts:
    """Clients, ledger and engines; `counted` is by response id, each from one engine's journal.

    `dead`: the engines that have ended since. A client that left before it was answered knows no
    id of its request: of these, no more are billed than left.
    """
    accounts = Accounts()
    ledger = {row.request_id: row for row in rows}
    if len(ledger) < len(rows):
        accounts.wrong.append(f"{len(rows) - len(ledger)} requests are billed twice")
    free = defaultdict(list)
    for attempt in unbilled:
        free[attempt["request_id"]].append(attempt)
    known: set[str] = set()
    nameless: Counter[str] = Counter()
    for outcome in outcomes:
        row = ledger.get(outcome.request_id or "")
        if row is not None:
            known.add(row.request_id)
        nameless[outcome.team] += outcome.request_id is None
        _one(accounts, outcome, row, counted)
    claimed: set[str | None] = set()
    for row in rows:
        if row.team == SYSTEM:
            continue
        if row.request_id not in known:
            nameless[row.team] -= 1
            account = accounts.kinds[ESTIMATED if row.estimated else CUT]
            account.ledger = add(account.ledger, tokens_of(asdict(row)))
            account.engines = add(account.engines, _counted(row, counted))
        if _against_engine(accounts, row, free[row.request_id], counted):
            claimed.add(row.response_id)
    accounts.wrong += [
        f"{-left} requests of {team} are billed and nobody's"
        for team, left in nameless.items()
        if left < 0
    ]
    warmed = _warm_ups(accounts, rows, claimed, counted, dead)
    others = [one for rid, one in counted.items() if rid not in claimed and rid not in warmed]
    attempts = sum(row.attempts for row in rows if row.team != SYSTEM) - len(claimed)
    _nobody_pays(accounts, unbilled, others, dead, attempts)
    return accounts


def _one(
    accounts: Accounts,
    outcome: Outcome,
    row: UsageRow | None,
    counted: Mapping[str, Mapping[str, Any]],
) -> None:
    """A client's word against its row."""
    name = f"{outcome.request_id or 'a request without an id'} of {outcome.team}"
    kind = _kind(outcome, row)
    account = accounts.kinds[kind]
    account.requests += 1
    if outcome.kind == BROKEN:
        accounts.wrong.append(f"{name}: {outcome.told}")
    if row is None:
        if outcome.request_id is not None and (outcome.seen or outcome.kind == COMPLETE):
            accounts.wrong.append(f"{name} has no row ({outcome.kind} {outcome.told})")
        return
    billed = tokens_of(asdict(row))
    got = told(outcome.usage) if outcome.kind == COMPLETE else (0, 0, outcome.seen)
    account.clients = add(account.clients, got)
    account.ledger = add(account.ledger, billed)
    account.engines = add(account.engines, _counted(row, counted))
    if row.team != outcome.team:
        accounts.wrong.append(f"{name} is billed to {row.team}")
    if outcome.kind == COMPLETE:
        if billed != got or row.estimated:
            guess = " by an estimate" if row.estimated else ""
            accounts.wrong.append(f"{name}: told {got}, billed {billed}{guess}")
    elif billed[2] < got[2]:
        accounts.wrong.append(f"{name}: billed {billed}, {got[2]} parts had come")


def _kind(outcome: Outcome, row: UsageRow | None) -> str:
    if outcome.kind == COMPLETE:
        return COMPLETE
    if row is not None and row.estimated:
        return ESTIMATED
    if outcome.kind == ERROR and not outcome.seen:
        return WITHOUT
    return CUT


def _counted(row: UsageRow, counted: Mapping[str, Mapping[str, Any]]) -> Tokens:
    found = counted.get(row.response_id or "")
    return NOTHING if found is None else tokens_of(found)


def _against_engine(
    accounts: Accounts,
    row: UsageRow,
    free: Iterable[Mapping[str, Any]],
    counted: Mapping[str, Mapping[str, Any]],
) -> bool:
    """A row's tokens are what the engine counted for its id, unless they are said to be a guess.

    False: it claims nothing of that id.
    """
    failed = [one for one in free if one["reason"] == "failed"]
    if row.estimated or any(one["estimated"] for one in failed):
        return True
    billed = tokens_of(asdict(row))
    for one in failed:
        billed = add(billed, tokens_of(one))
    if billed == NOTHING:
        return False
    if billed != (engine := _counted(row, counted)):
        accounts.wrong.append(
            f"{row.request_id} of {row.team} ({row.outcome}): ledger {billed}, engine {engine}"
        )
    return True


def _nobody_pays(
    accounts: Accounts,
    unbilled: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    dead: Container[int],
    attempts: int,
) -> None:
    """`others`: what engines counted beside rows and warm-ups. Their ids are kept by no row.

    Each is an attempt that nobody pays for; or a prompt that an engine had read when it was ended,
    silent, so that it could tell nobody and its counters went with it: of these there are no more
    than `attempts` that no row claims.
    """
    left = Counter(tokens_of(one) for one in others)
    before = [one for one in unbilled if one["reason"] != "failed"]
    exact = Counter(tokens_of(one) for one in before if not one["estimated"])
    accounts.estimated_unbilled = sum(bool(one["estimated"]) for one in unbilled)
    accounts.unbilled = len(unbilled)
    if missing := exact - left:
        accounts.wrong.append(f"not billed, and counted by no engine: {dict(missing)}")
    left -= exact
    silent = [one for one in others if one["pid"] in dead and not one["completion_tokens"]]
    untold = left & Counter(tokens_of(one) for one in silent)
    accounts.untold = untold.total()
    accounts.untold_tokens = sum(tokens[0] * count for tokens, count in untold.items())
    guessed = len(before) - exact.total()
    if (more := left - untold).total() > guessed or untold.total() > attempts:
        accounts.wrong.append(
            f"in no account, and counted by engines: {dict(more)}; estimated are {guessed};"
            f" {untold.total()} read by silent engines, of {attempts} attempts without an account"
        )


def _warm_ups(
    accounts: Accounts,
    rows: Sequence[UsageRow],
    claimed: Container[str | None],
    counted: Mapping[str, Mapping[str, Any]],
    dead: Container[int],
) -> set[str]:
    """The ids of warm-ups: what each engine counted first.

    An engine that died before it was ready has no row.
    """
    billed = Counter(tokens_of(asdict(row)) for row in rows if row.team == SYSTEM)
    by_pid: dict[int, list[str]] = defaultdict(list)
    for rid, one in counted.items():
        by_pid[one["pid"]].append(rid)
    warmed: set[str] = set()
    for pid, rids in by_pid.items():
        total, first = NOTHING, set()
        for rid in rids:
            if rid in claimed:
                break
            total = add(total, tokens_of(counted[rid]))
            first.add(rid)
            if billed[total]:
                billed[total] -= 1
                warmed |= first
                break
        else:
            if pid in dead and len(rids) < WARM_UP_REQUESTS:
                warmed |= first
    if left := +billed:
        accounts.wrong.append(f"warm-ups that no engine counted: {dict(left)}")
    return warmed


def compare_metrics(text: str, rows: Iterable[UsageRow]) -> tuple[Tokens, list[str]]:
    """`/metrics` against the ledger, by team and model: its sum, and where they differ.

    Warm-ups are nobody's traffic: it does not show them.
    """
    billed: dict[tuple[str, str], Tokens] = defaultdict(lambda: NOTHING)
    requests: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.team == SYSTEM:
            continue
        billed[row.team, row.model] = add(billed[row.team, row.model], tokens_of(asdict(row)))
        requests[row.team, row.model] += 1
    shown: dict[tuple[str, str], Tokens] = defaultdict(lambda: NOTHING)
    answered: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, value = sample.name, int(sample.value)
            key = sample.labels.get("team", ""), sample.labels.get("model", "")
            if name == "inferd_prompt_tokens_total":
                cached = value if sample.labels["cached"] == "true" else 0
                shown[key] = add(shown[key], (value, cached, 0))
            elif name == "inferd_completion_tokens_total":
                shown[key] = add(shown[key], (0, 0, value))
            elif name == "inferd_requests_total":
                answered[key] += value
    wrong = [
        f"/metrics of {key[0]} on {key[1]}: {answered[key]} requests, {shown[key]};"
        f" ledger: {requests[key]}, {billed[key]}"
        for key in sorted({*billed, *shown, *requests, *answered})
        if billed[key] != shown[key] or requests[key] != answered[key]
    ]
    total = NOTHING
    for tokens in shown.values():
        total = add(total, tokens)
    return total, wrong


def costs_shown(text: str) -> dict[str, float]:
    """What `/metrics` says that each team owes."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "inferd_cost_total":
                found[sample.labels["team"]] += sample.value
    return found


def compare_engines(
    balance: Mapping[str, Any],
    pids: Mapping[str, int],
    rows: Sequence[UsageRow],
    counted: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """`inferd reconcile`: its engine side is the journal's sum, its difference the estimated."""
    wrong = []
    by_worker = defaultdict(list)
    for row in rows:
        if row.estimated:
            by_worker[row.worker].append(row)
    for worker in balance["workers"]:
        name, pid = worker["worker"], pids.get(worker["worker"])
        if worker["problem"] is not None:
            wrong.append(f"reconcile of {name}: {worker['problem']}")
            continue
        total = NOTHING
        for one in counted.values():
            if one["pid"] == pid:
                total = add(total, tokens_of(one))
        engine = tokens_of(worker["engine"])
        if engine != total:
            wrong.append(f"{name} counts {engine}, its journal {total}")
        left = tokens_of(worker["difference"])
        listed = {one["request_id"] for one in balance["estimated"] if one["worker"] == name}
        if not worker["unbilled"]["estimated"]:
            guessed = NOTHING
            for row in by_worker[name]:
                if row.request_id in listed:
                    real = counted.get(row.response_id or "")
                    mine = tokens_of(real) if real and real["pid"] == pid else NOTHING
                    less = tokens_of(asdict(row))
                    guessed = add(
                        guessed, (mine[0] - less[0], mine[1] - less[1], mine[2] - less[2])
                    )
            if left != guessed:
                wrong.append(f"{name} is off by {left}, its estimated rows by {guessed}")
    return wrong
