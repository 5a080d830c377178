"""The report: one HTML file that holds everything it shows, readable without a network, in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from . import charts, curves
from .picture import ARM_NAMES, seconds
from .result import all_lent

STYLE = Path(__file__).with_name("report.css")
# An empty icon, so that a browser does not ask a server for one.
HEAD = ('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">')


def page(data: dict) -> str:
    """The whole file, for a result of result.py's format; parts that were not run are left out."""
    sections = [_ttft(data), _sweep(data), _timeline(data), _answers(data), _checks(data), _machine(data)]
    return (f'<!doctype html><html lang="en"><head>{HEAD}<title>kvdepot demo</title>'
            f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body><main>{_header(data)}"
            f"{''.join(sections)}</main></body></html>\n")


def headline(data: dict) -> str:
    """What the figures say, in one sentence."""
    by_name = {key.rsplit("_", 2)[0]: value for key, value in data["ratios"].items()}
    depot, killed = by_name.get("cold_over_depot"), by_name.get("cold_over_depot_after_kill")
    if depot and killed:
        return f"First token {depot:.0f} times sooner from the depot, {killed:.0f} times after it was killed"
    if depot:
        return f"First token {depot:.0f} times sooner from the depot"
    return "kvdepot demo"


def _header(data: dict) -> str:
    checks = data["checks"]
    good = sum(check["ok"] for check in checks)
    tone = "good" if data["status"] == "ok" else "bad"
    verdict = "" if data["status"] != "incomplete" else "; the run did not end"
    engine = data["engine"]
    model = f" Measured with {engine['model']} on vLLM {engine['vllm']}." if engine else ""
    return (f'<header><p class="soft">kvdepot demo, {escape(data["when"][:10])}</p><h1>{escape(headline(data))}</h1>'
            f'<p>What one engine has computed, another one loads instead of computing it again.{escape(model)}</p>'
            f'<p><span class="status {tone}">{good} of {len(checks)} claims ok{verdict}</span></p></header>')


def _section(title: str, text: str, body: str) -> str:
    return f"<section><h2>{title}</h2><p class=\"soft\">{text}</p>{body}</section>"


def _way(data: dict) -> str:
    """How engines got at it, as the depot counted it."""
    lent = data.get("lent", {})
    if not lent:
        return ""
    if all_lent(data):
        megabytes = sum(engine["bytes"] for engine in lent.values()) / 1e6
        return (f"Engines read it in the depot's memory, of which {megabytes:.0f} MB were lent to them, as engines on "
                "its host do; over TCP it takes longer.")
    return "Engines were sent it, not all of it was read in the depot's memory."


def _ttft(data: dict) -> str:
    if not data["ttft"]:
        return ""
    document = data["document"]
    text = (f"A document of {document['tokens']:,} tokens ({document['kv_bytes'] / 1e6:.0f} MB of KV cache) and a "
            f"question of {document['question_tokens']}. {_way(data)} Median of the runs; the thin line spans minimum "
            "to maximum.")
    rows = [[escape(row["label"]), row["engine"], f"{row['cached_tokens']:,}", seconds(row["median_s"]),
             seconds(row["min_s"]), seconds(row["max_s"]), str(len(row["runs_s"]))] for row in data["ttft"]]
    table = _table(["", "engine", "tokens cached", "median", "min", "max", "runs"], rows, numbers_from=2)
    return _section("Time to first token", text,
                    f'<div class="scroll">{charts.bars(data["ttft"])}</div>{_details("figures", table)}')


def _sweep(data: dict) -> str:
    sweep = data["sweep"]
    if not sweep or not sweep["arms"]:
        return ""
    text = ("How long the first token takes, over the share of the document that the depot holds. If load, store and "
            "compute overlapped perfectly, it would be the longest of the three; one after the other, their sum. "
            "The parts were measured alone.")
    figures, rows = [], []
    for arm in sorted(sweep["arms"], key=lambda arm: arm["name"] != "e3"):
        bandwidth = f", {arm['bandwidth'] / 1e6:.0f} MB/s" if arm["bandwidth"] else f", e = {arm['e']:.0f}"
        title = f"Depot {ARM_NAMES[arm['name']]}{bandwidth}"
        figures.append(f"<div>{charts.sweep(arm, title)}</div>")
        for p in arm["points"]:
            longest, total = curves.overlapped_s(p), curves.one_by_one_s(p)
            rows.append([escape(title), f"{p['reuse']:.0%}", seconds(p["load_s"]), seconds(p["store_s"]),
                         seconds(p["compute_s"]), seconds(p["ttft_s"]),
                         f"{p['ttft_s'] / longest:.2f}", f"{p['ttft_s'] / total:.2f}"])
    table = _table(["", "reuse", "load", "store", "compute", "measured", "/ longest", "/ sum"], rows, numbers_from=1)
    legend = _legend([("point", "measured"), ("longest", "longest of the three"), ("sum", "their sum"),
                      ("load", "load"), ("compute", "compute"), ("store", "store")])
    return _section(f"Reuse sweep, {sweep['tokens']:,} tokens", text,
                    f'{legend}<div class="pair">{"".join(figures)}</div>{_details("figures", table)}')


def _timeline(data: dict) -> str:
    request = data["timeline"]
    if not request or not request["events"]:
        return ""
    text = (f"One request of {request['tokens']:,} tokens, {request['reuse']:.0%} of its document in the depot, "
            f"bandwidth shaped to e = {request['e']:.0f}: {request['load_s']:.2f} s of loading, "
            f"{request['compute_s']:.2f} s of computing and {request['store_s']:.2f} s of storing gave the first token "
            f"after {request['first_token_s']:.2f} s. Loading and computing ran at the same time for "
            f"{request['overlap_s']:.2f} s. Each layer has three lanes.")
    legend = _legend([(kind, kind) for kind in ("load", "compute", "store")])
    return _section("One request, layer by layer", text,
                    f'{legend}<div class="scroll">{charts.layers(request)}</div>')


def _answers(data: dict) -> str:
    if not data["answers"]:
        return ""
    rows = []
    for answer in data["answers"]:
        same = '<span class="good">identical</span>' if answer["tokens_identical"] \
            else '<span class="bad">different</span>'
        given = [escape(answer[kind] or "") for kind in ("prefix_cache", "depot", "depot_after_kill")]
        rows.append([f"{escape(answer['question'])} …", *given, same])
    text = ("Greedy, behind the same document. The model is small and may err; what counts is that it says the same "
            "whether its KV cache never left the engine or came from the depot.")
    return _section("Answers", text, _table(["question", "own prefix cache", "depot", "depot after SIGKILL", "tokens"],
                                            rows))


def _checks(data: dict) -> str:
    rows = [[f'<span class="{"good" if c["ok"] else "bad"}">{"ok" if c["ok"] else "FAILED"}</span>',
             escape(c["name"]), f'<span class="soft">{escape(c["detail"])}</span>'] for c in data["checks"]]
    return _section("Claims", "The demo's exit status is 0 only if every line says ok.", _table(["", "", ""], rows))


def _machine(data: dict) -> str:
    machine, engine = data["machine"], data["engine"]
    facts = [("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"),
             ("kernel", machine["kernel"]), ("kvdepot", data["version"])]
    if engine:
        facts.append(("engine", f"vLLM {engine['vllm']}, {engine['dtype']}, cores {engine['threads']}, blocks of "
                                f"{engine['block_tokens']} tokens, up to {engine['batch_tokens']:,} tokens a pass"))
    if crash := data["crash"]:
        facts.append(("restart", f"listening after {seconds(max(crash['restart_s']))}, recovery "
                                 f"{max(crash['recovery_ms']):.0f} ms (the longest of {crash['kills']})"))
    facts.append(("whole run", f"{data['seconds']:.0f} s"))
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    steps = _table(["step", "time"], [[escape(s["label"]), seconds(s["seconds"])] for s in data["steps"]], 1)
    return f"<section><h2>Where it ran</h2><dl>{listed}</dl>{_details('steps', steps)}</section>"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    return '<ul class="legend">' + "".join(f'<li><i class="{kind}"></i>{text}</li>' for kind, text in entries) + "</ul>"


def _details(title: str, body: str) -> str:
    return f'<details><summary>{title}</summary><div class="scroll">{body}</div></details>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 99) -> str:
    """Cells are markup; columns from `numbers_from` on are set flush right."""
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag}{" class=number" if i >= numbers_from else ""}>{cell}</{tag}>'
                       for i, cell in enumerate(row))
    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>" if any(heads) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
