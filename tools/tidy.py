#!/usr/bin/env python3
"""Checks the house rules that a script can see. Runs as a test (label tidy) and as `make tidy`.

    tools/tidy.py [--root DIR] [--rule NAME]...

Each finding is one line on stdout, `path:line: rule: message`; exit status 1 when there is one. The rules:

    include    includes go down the room numbers only; names start at src/ or include/
    room       every room has kvd_room() with its level, lists all its sources, and a paragraph in docs/architecture.md
    env        the environment is read in src/cmd and in the Python modules listed below, nowhere else
    length     files end at 600 lines (tests 800), functions at 70, lines at 120 columns
    comment    a header opens with a comment; comment lines / code lines of a room's headers is at least 0.30
    text       no tabs, no spaces at the end of a line, a newline at the end of the file
    word       no notes of unfinished work, no paths of one developer's machine
    name       files are named after what they hold, in snake_case
    public     include/kvdepot has at most 10 headers, and they include nothing of src/
    link       links of Markdown pages lead to files that exist
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cpp_scan

FILE_LINES_MAX = 600
TEST_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 120
HEADER_COMMENT_SHARE_MIN = 0.30
PUBLIC_HEADERS_MAX = 10

CPP = (".h", ".cc")
CODE = (".h", ".cc", ".py", ".cmake", ".sh")
TEXT = CODE + (".md", ".txt", ".toml", ".json", ".yaml", ".yml", ".service", ".html", ".js", ".css")
# Not written by hand: results that are kept as they came, inputs of tests.
NOT_OURS = re.compile(r"(^|/)(corpus|testdata|data|results)/|^docs/results/|\.lock$|\.svg$")

# Python modules that may read the environment, each with its reason. C++ reads it in src/cmd only.
PYTHON_ENV = {
    "bench/engine_worker.py": "sets vLLM's way to start processes, which it takes from the environment alone",
    "python/kvdepot/demo/terminal.py": "NO_COLOR and TERM, as every program on a terminal",
    "tools/engine_env.py": "passes its own environment on to pip; TERM for progress",
}

# Put together here, so that this file does not hold them.
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]
STOPGAPS = ["place" + "holder", "for" + r" now(?!\s+in\b)"]
WORD_RULES = [
    (re.compile(r"\b(?:" + "|".join(UNFINISHED) + r")\b"), "a note of unfinished work: do it, or say so in docs/"),
    (re.compile(r"\b(?:" + "|".join(STOPGAPS) + r")\b", re.I), "a stopgap: do it, or name what is missing in docs/"),
    (re.compile(r"(?<![\w.~/-])/(?:ro" + r"ot|wo" + r"rk|home/\w+)/"), "a path of one machine"),
]
VAGUE_NAMES = re.compile(r"(^|_)(manager|helpers?|utils?|common|misc|impl2|v2)(_|$)")
THIRD_PARTY = re.compile(r"(fmt|spdlog|boost|nlohmann|CLI|toml\+\+|prometheus|openssl|gtest)/")
SNAKE_CASE = re.compile(r"^[a-z0-9_]+(\.[a-z0-9]+)?$")


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule at one place; line 0 speaks of the file or folder as a whole."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{max(self.line, 1)}: {self.rule}: {self.message}"


class Tree:
    """The files of a checkout: what git tracks or would track, or everything where there is no git."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = self._list()
        self.text = cache(self._text)

    def _list(self) -> list[str]:
        command = ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
            names = set(out.split("\0")) - {""}
        except (OSError, subprocess.CalledProcessError):
            names = {p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file()}
            names = {n for n in names if not n.startswith(("build/", ".git/")) and "__pycache__" not in n}
        return sorted(n for n in names if (self.root / n).is_file())

    def _text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def lines(self, name: str) -> list[str]:
        return self.text(name).split("\n")

    def matching(self, under: str, suffixes: tuple[str, ...]) -> list[str]:
        return [n for n in self.files if n.startswith(under) and n.endswith(suffixes)]

    @property
    def ours(self) -> list[str]:
        """Text written by hand."""
        special = ("Makefile", "CMakeLists.txt")
        return [n for n in self.files if not NOT_OURS.search(n) and n != "LICENSE"
                and (n.endswith(TEXT) or n.rsplit("/", 1)[-1] in special or n.startswith(".ci/"))]

    @property
    def rooms(self) -> list[str]:
        return sorted({n.split("/")[1] for n in self.matching("src/", CPP) if n.count("/") >= 2})

    def levels(self) -> dict[str, int]:
        """Room -> level, from the kvd_room(name LEVEL n) calls below src/."""
        found = {}
        for name in self.matching("src/", ("CMakeLists.txt",)):
            for room, level in re.findall(r"^\s*kvd_room\(\s*(\w+)\s+LEVEL\s+(\d+)", self.text(name), re.M):
                found[room] = int(level)
        return found


INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def includes(tree: Tree, name: str) -> Iterator[tuple[int, str, bool]]:
    """(line, included name, in quotes) of each #include outside of comments."""
    for number, line in enumerate(cpp_scan.without_comments(tree.text(name)).split("\n"), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) or match.group(2), match.group(1) is not None


def check_include(tree: Tree) -> Iterator[Finding]:
    levels = tree.levels()
    for name in tree.matching("src/", CPP):
        room = name.split("/")[1]
        for line, target, quoted in includes(tree, name):
            if not quoted:
                if room == "base" and name.endswith(".h") and THIRD_PARTY.match(target):
                    yield Finding(name, line, "include", f"headers of room base include no third party, but <{target}>")
                continue
            other = target.split("/")[0]
            if other == "kvdepot":
                continue
            if other not in levels and not (tree.root / "src" / other).is_dir():
                yield Finding(name, line, "include", f'"{target}" does not start at src/ or include/')
            elif other != room and other in levels and room in levels and levels[other] >= levels[room]:
                yield Finding(name, line, "include", f"room {room} (level {levels[room]}) may not include room {other}"
                              f" (level {levels[other]})")


def check_room(tree: Tree) -> Iterator[Finding]:
    levels = tree.levels()
    page = "docs/architecture.md"
    page_text = tree.text(page) if page in tree.files else ""
    for room in tree.rooms:
        build = f"src/{room}/CMakeLists.txt"
        if room not in levels:
            yield Finding(build, 0, "room", f"no kvd_room({room} LEVEL ...) for the sources in src/{room}/")
            continue
        listed = set(re.findall(r"[\w./-]+\.cc\b", re.sub(r"#.*", "", tree.text(build))))
        for name in tree.matching(f"src/{room}/", (".cc",)):
            if name.removeprefix(f"src/{room}/") not in listed:
                yield Finding(name, 0, "room", f"not listed in {build}, so it is not built")
        if page_text and not re.search(rf"src/{room}\b|`{room}`|\*\*{room}\*\*|^#+ .*\b{room}\b", page_text, re.M):
            yield Finding(page, 0, "room", f"no paragraph on room {room}")


CPP_ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|setenv|putenv|unsetenv|environ)\b")


def check_env(tree: Tree) -> Iterator[Finding]:
    for name in tree.matching("", CPP):
        if name.startswith("src/cmd/"):
            continue
        for number, line in enumerate(cpp_scan.blank(tree.text(name)).split("\n"), 1):
            if match := CPP_ENVIRONMENT.search(line):
                yield Finding(name, number, "env", f"{match.group()} outside of src/cmd: pass the value in")
    for name in tree.matching("", (".py",)):
        if name not in PYTHON_ENV:
            for number in sorted(python_environment_lines(tree.text(name))):
                yield Finding(name, number, "env", "reads the environment: pass the value in, or list the module in "
                              "tools/tidy.py")


def python_environment_lines(text: str) -> set[int]:
    """Lines that touch os.environ, os.getenv and their relatives, or import them by name."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    nodes = list(ast.walk(parse_python(text)))
    modules = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import)
               for alias in node.names if alias.name == "os"}
    lines = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.value, ast.Name) \
                and node.value.id in modules:
            lines.add(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}:
            lines.add(node.lineno)
    return lines


@cache
def parse_python(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        return ast.Module(body=[ast.Pass(lineno=error.lineno or 1, col_offset=0)], type_ignores=[])


def is_test(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    return name.startswith("tests/") or re.search(r"_test\.(cc|py)$|^test_.*\.py$", base) is not None


def check_length(tree: Tree) -> Iterator[Finding]:
    for name in tree.ours:
        lines = tree.lines(name)
        if name.endswith(CODE) or "." not in name.rsplit("/", 1)[-1]:
            allowed = TEST_LINES_MAX if is_test(name) else FILE_LINES_MAX
            if len(lines) - 1 > allowed:
                yield Finding(name, allowed, "length", f"{len(lines) - 1} lines, allowed are {allowed}")
        if name.endswith(CODE):
            for number, line in enumerate(lines, 1):
                if len(line) > LINE_COLUMNS_MAX:
                    yield Finding(name, number, "length", f"{len(line)} columns, allowed are {LINE_COLUMNS_MAX}")
        yield from check_function_length(tree, name)


def check_function_length(tree: Tree, name: str) -> Iterator[Finding]:
    found: list[cpp_scan.Function] = []
    if name.endswith(CPP):
        try:
            found = cpp_scan.functions(tree.text(name))
        except cpp_scan.UnbalancedBraces as error:
            yield Finding(name, 0, "length", f"braces do not balance ({error}), so functions can't be measured")
    elif name.endswith(".py"):
        for node in ast.walk(parse_python(tree.text(name))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(cpp_scan.Function(node.name, node.lineno, node.end_lineno or node.lineno))
    for function in found:
        if function.lines > FUNCTION_LINES_MAX:
            yield Finding(name, function.first, "length",
                          f"{function.name} has {function.lines} lines, allowed are {FUNCTION_LINES_MAX}")


def check_comment(tree: Tree) -> Iterator[Finding]:
    rooms = [f"src/{room}/" for room in tree.rooms] + ["include/kvdepot/"]
    for room in rooms:
        comment = code = 0
        for name in tree.matching(room, (".h",)):
            text = tree.text(name)
            if not text.lstrip().startswith(("//", "/*")):
                yield Finding(name, 1, "comment", "a header opens with what it is, who owns it and on which thread")
            comment_lines, code_lines = cpp_scan.count_lines(text)
            comment += comment_lines
            code += code_lines
        if code and comment / code < HEADER_COMMENT_SHARE_MIN:
            missing = int(HEADER_COMMENT_SHARE_MIN * code - comment) + 1
            yield Finding(room.rstrip("/"), 0, "comment",
                          f"comment/code in headers is {comment / code:.2f}, at least {HEADER_COMMENT_SHARE_MIN:.2f}"
                          f" is asked for: about {missing} more comment lines")


def check_text(tree: Tree) -> Iterator[Finding]:
    for name in tree.ours:
        tabs_allowed = name.rsplit("/", 1)[-1] == "Makefile"
        text = tree.text(name)
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line and not tabs_allowed:
                yield Finding(name, number, "text", "a tab")
            if line != line.rstrip():
                yield Finding(name, number, "text", "spaces at the end of the line")
        if text and not text.endswith("\n"):
            yield Finding(name, text.count("\n") + 1, "text", "no newline at the end of the file")
    for name in {*tree.ours, *tree.matching("docs/", (".md",))}:
        for number, line in enumerate(tree.lines(name), 1):
            if line.startswith(("<" * 7 + " ", ">" * 7 + " ")):
                yield Finding(name, number, "text", "a merge was not finished here")


def check_word(tree: Tree) -> Iterator[Finding]:
    for name in tree.ours:
        for number, line in enumerate(tree.lines(name), 1):
            for pattern, message in WORD_RULES:
                if match := pattern.search(line):
                    yield Finding(name, number, "word", f"`{match.group()}` is {message}")


def check_name(tree: Tree) -> Iterator[Finding]:
    for name in tree.matching("", CPP + (".py",)):
        base = name.rsplit("/", 1)[-1]
        if not SNAKE_CASE.match(base):
            yield Finding(name, 0, "name", "file names are snake_case")
        elif VAGUE_NAMES.search(base.split(".")[0].removesuffix("_test")):
            yield Finding(name, 0, "name", "says nothing about what the file holds")


def check_public(tree: Tree) -> Iterator[Finding]:
    headers = tree.matching("include/kvdepot/", (".h",))
    if len(headers) > PUBLIC_HEADERS_MAX:
        yield Finding("include/kvdepot", 0, "public", f"{len(headers)} headers, allowed are {PUBLIC_HEADERS_MAX}")
    for name in headers:
        for line, target, quoted in includes(tree, name):
            if quoted and not target.startswith("kvdepot/"):
                yield Finding(name, line, "public", f'"{target}" is not installed with the public headers')


LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")


def check_link(tree: Tree) -> Iterator[Finding]:
    for name in tree.matching("", (".md",)):
        fenced = False
        for number, line in enumerate(tree.lines(name), 1):
            if line.lstrip().startswith(("```", "~~~")):
                fenced = not fenced
            if fenced:
                continue
            for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                target = (match.group(1) or match.group(2)).split("#")[0]
                if not target or re.match(r"[a-z][a-z+.-]*:", target):
                    continue
                start = tree.root if target.startswith("/") else (tree.root / name).parent
                if not (start / target.lstrip("/")).exists():
                    yield Finding(name, number, "link", f"{target} does not exist")


RULES: dict[str, Callable[[Tree], Iterator[Finding]]] = {
    "include": check_include, "room": check_room, "env": check_env, "length": check_length, "comment": check_comment,
    "text": check_text, "word": check_word, "name": check_name, "public": check_public, "link": check_link,
}


def check_python_syntax(tree: Tree) -> Iterator[Finding]:
    """A module that does not parse would pass the rules that read its syntax tree."""
    for name in tree.matching("", (".py",)):
        try:
            ast.parse(tree.text(name))
        except SyntaxError as error:
            yield Finding(name, error.lineno or 0, "text", f"does not parse: {error.msg}")


def run(root: Path, rules: list[str]) -> list[Finding]:
    tree = Tree(root)
    found = [finding for rule in rules for finding in RULES[rule](tree)]
    return sorted(set(found) | set(check_python_syntax(tree)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     epilog="example: tools/tidy.py --rule include --rule length")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="checkout to look at")
    parser.add_argument("--rule", action="append", choices=sorted(RULES), help="only this rule; may be repeated")
    arguments = parser.parse_args()
    found = run(arguments.root.resolve(), arguments.rule or list(RULES))
    for finding in found:
        print(finding)
    if found:
        print(f"tidy: {len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
