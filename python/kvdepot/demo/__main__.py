"""`python -m kvdepot.demo`: the main job with real engines, in a few minutes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import document, lab, picture, plan, report, result
from .processes import DemoError, Interrupted, raise_on_signals
from .progress import Progress
from .terminal import Terminal

EPILOG = """example: python -m kvdepot.demo --only reuse,crash --keep

Exit status: 0 all that the demo claims was so; 1 a claim failed or the run could not go on (one line says why);
2 wrong usage; 130 interrupted. Files go to BUILD_DIR/demo: result.json, report.html, logs/.
"""


def main(argv: Sequence[str] | None = None) -> int:
    settings, as_json = parse(argv)
    return guarded(lambda terminal: run(settings, terminal, as_json), as_json)


def guarded(body: Callable[[Terminal], int], as_json: bool = False) -> int:
    """Runs the body with signals as exceptions; its errors become one line and an exit status."""
    raise_on_signals()
    terminal = Terminal.of(sys.stderr if as_json else sys.stdout)
    try:
        return body(terminal)
    except DemoError as error:
        terminal.line(f"demo: {error}")
        return 1
    except BrokenPipeError:     # whoever read along has gone; Python's own flush at exit must not complain either
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.out.fileno())
        return 1
    except OSError as error:
        terminal.line(f"demo: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
        return 1
    except (Interrupted, KeyboardInterrupt) as signal_seen:
        terminal.line(f"demo: {signal_seen or 'interrupted'}; everything it started has been ended")
        return 130


def parse(argv: Sequence[str] | None) -> tuple[lab.Settings, bool]:
    parts = "\n".join(f"  {name:8}{what}" for name, what in plan.PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m kvdepot.demo", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description=f"Runs kvdepot's main job with real vLLM engines and checks what it claims.\n\nparts:\n{parts}")
    parser.add_argument("--only", metavar="PART,...", help="only these parts; default: reuse,crash,sweep")
    parser.add_argument("--quick", action="store_true", help="fewer questions, kills and sweep points")
    parser.add_argument("--keep", action="store_true", help="keep the depot's directory")
    parser.add_argument("--json", action="store_true", help="print result.json on standard output, the rest on "
                        "standard error")
    parser.add_argument("--build-dir", type=Path, default=Path("build"), help="default: build")
    parser.add_argument("--model", type=Path, help="default: the one that tools/engine_env.py puts into the build "
                        "folder")
    parser.add_argument("--binary", help="kvdepot to run; default: that of the release build, then PATH")
    arguments = parser.parse_args(argv)
    chosen = (arguments.only or "reuse,crash,sweep").split(",")
    if unknown := [part for part in chosen if part not in plan.PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(plan.PARTS)}")
    if "report" in chosen and len(chosen) > 1:
        parser.error("the part report runs alone; a full run ends with a report anyway")
    build = arguments.build_dir.absolute()
    settings = lab.Settings(build, arguments.model or build / "models" / lab.MODEL_NAME,
                            arguments.binary or find_binary(build), chosen, arguments.quick, arguments.keep)
    return settings, arguments.json


def find_binary(build: Path) -> str:
    built = build / "release" / "bin" / "kvdepot"
    return str(built) if built.exists() else shutil.which("kvdepot") or str(built)


def run(settings: lab.Settings, terminal: Terminal, as_json: bool, encode: document.Encode | None = None) -> int:
    """`encode` is the model's tokenizer, which is looked for when it is not given."""
    path = settings.out / "result.json"
    if settings.parts == ["report"]:
        data = result.load(path)
    else:
        data = play(settings, terminal, encode or tokenizer(settings), path)
    show(settings, terminal, data)
    if as_json:
        print(json.dumps(data))
    return 0 if data["status"] == "ok" else 1


def play(settings: lab.Settings, terminal: Terminal, encode: document.Encode, path: Path) -> dict:
    """Runs the steps. What was measured until then is written also when a step fails."""
    progress, found = Progress(terminal), result.Result()
    try:
        with lab.opened(settings, progress, found) as the_lab:
            actions = plan.actions(the_lab, encode)
            progress.plan([action.step for action in actions])
            for action in actions:
                with progress.step(action.step.name):
                    action.run()
            found.finish(progress.elapsed(), steps_of(progress))
    finally:
        if path.parent.is_dir():
            found.data["seconds"], found.data["steps"] = progress.elapsed(), steps_of(progress)
            result.save(found.data, path)
    return found.data


def steps_of(progress: Progress) -> list[dict]:
    return [{"name": step.name, "label": step.label, "seconds": step.took_s}
            for step in progress.steps if step.took_s is not None]


def show(settings: lab.Settings, terminal: Terminal, data: dict) -> None:
    page = settings.out / "report.html"
    page.write_text(report.page(data), encoding="utf-8")
    picture.show(terminal, data)
    terminal.line(f"\nreport: {page}\nresult: {settings.out / 'result.json'}")


def tokenizer(settings: lab.Settings) -> document.Encode:
    """The model's own. What is missing is said in one line, before anything is started."""
    if not (settings.engine_command or shutil.which(settings.binary)):
        raise DemoError(f"{settings.binary} is not there; run `make demo`, or name it with --binary")
    if not (settings.model / "tokenizer.json").exists():
        raise DemoError(f"{settings.model} holds no model; run tools/engine_env.py, or name one with --model")
    missing = [name for name in ("tokenizers", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(f"this Python ({sys.executable}) has no {missing[0]}; use the one of tools/engine_env.py: "
                        f"{settings.build / 'engine-venv' / 'bin' / 'python'}")
    from tokenizers import Tokenizer
    model = Tokenizer.from_file(str(settings.model / "tokenizer.json"))
    return lambda text: model.encode(text, add_special_tokens=False).ids


if __name__ == "__main__":
    sys.exit(main())
