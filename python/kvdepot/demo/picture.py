"""The result in a terminal: a picture of bars, tables, and what was claimed with ok or FAILED."""

from __future__ import annotations

from . import curves
from .terminal import Terminal

ARM_NAMES = {"unshaped": "unshaped", "e3": "shaped to e = 3"}


def show(terminal: Terminal, data: dict) -> None:
    if data["ttft"]:
        _show_ttft(terminal, data)
    if data["answers"]:
        _show_answers(terminal, data["answers"])
    if data["sweep"]:
        _show_sweep(terminal, data["sweep"])
    _show_checks(terminal, data)


def _show_ttft(terminal: Terminal, data: dict) -> None:
    rows, document = data["ttft"], data["document"]
    tokens = document["tokens"] + document["question_tokens"]
    terminal.line()
    terminal.line(terminal.paint(f"Time to first token, {tokens:,} tokens", "bold"))
    cells = max(10, terminal.width - 72)
    full = max(row["median_s"] for row in rows)
    cold = next((row["median_s"] for row in rows if row["name"] == "cold"), None)
    for row in rows:
        bar = terminal.bar(row["median_s"], full, cells)
        faster = f"{cold / row['median_s']:6.0f}×" if cold and row["name"] != "cold" else " " * 7
        spread = f"{seconds(row['min_s'])} - {seconds(row['max_s'])}" if len(row["runs_s"]) > 1 else ""
        terminal.line(f"  {row['label']:<29}{seconds(row['median_s']):>9} {faster}  "
                      f"{terminal.paint(bar + ' ' * (cells - len(bar)), 'cyan')}  {terminal.paint(spread, 'dim')}"
                      .rstrip())


def _show_answers(terminal: Terminal, answers: list[dict]) -> None:
    terminal.line()
    terminal.line(terminal.paint("Answers", "bold") + " (own prefix cache | depot | depot after SIGKILL)")
    for answer in answers:
        given = " | ".join(answer[kind] or "-" for kind in ("prefix_cache", "depot", "depot_after_kill"))
        same = terminal.paint("identical", "green") if answer["tokens_identical"] \
            else terminal.paint("DIFFERENT", "red")
        terminal.line(f"  {answer['question']} … {given}  {same}")


def _show_sweep(terminal: Terminal, sweep: dict) -> None:
    for arm in sweep["arms"]:
        terminal.line()
        bandwidth = f", {arm['bandwidth'] / 1e6:.0f} MB/s" if arm["bandwidth"] else ""
        terminal.line(terminal.paint(f"Reuse sweep, {sweep['tokens']:,} tokens, {ARM_NAMES[arm['name']]}{bandwidth}",
                                     "bold") + f" (measured e = {arm['e']:.1f})")
        terminal.line("  reuse    load   store  compute |     max  measured      sum | measured/max  measured/sum")
        for point in arm["points"]:
            longest, total = curves.overlapped_s(point), curves.one_by_one_s(point)
            terminal.line(f"  {point['reuse']:5.0%}{point['load_s']:8.2f}{point['store_s']:8.2f}"
                          f"{point['compute_s']:9.2f} |{longest:8.2f}{point['ttft_s']:10.2f}{total:9.2f} |"
                          f"{point['ttft_s'] / longest:13.2f}{point['ttft_s'] / total:14.2f}")


def _show_checks(terminal: Terminal, data: dict) -> None:
    terminal.line()
    terminal.line(terminal.paint("Claims", "bold"))
    for check in data["checks"]:
        mark = terminal.paint("ok    ", "green") if check["ok"] else terminal.paint("FAILED", "red")
        detail = f": {check['detail']}" if check["detail"] else ""
        terminal.line(f"  {mark} {check['name']}{terminal.paint(detail, 'dim')}")
    good = sum(check["ok"] for check in data["checks"])
    verdict = {"ok": "all were so", "failed": "not all were so", "incomplete": "the run did not end"}[data["status"]]
    terminal.line(terminal.paint(f"{good} of {len(data['checks'])} claims ok: {verdict}. "
                                 f"{data['seconds']:.0f} s in all.", "green" if data["status"] == "ok" else "red"))


def seconds(value: float) -> str:
    """Three digits that mean something: "7.20 s", "61.0 ms"."""
    if value >= 1:
        return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.1 else f"{value * 1e3:.1f} ms"
