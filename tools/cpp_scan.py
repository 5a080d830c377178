"""Reads C++ just well enough to measure it: comments, code without text, functions and their lengths.

Used by tidy.py. No preprocessor and no types: blank() removes what could confuse a brace count (comments, strings,
raw strings, characters, preprocessor lines, the #else side of a conditional), functions() then follows the braces
and tells namespaces, types, initialisers and function bodies apart by the text in front of each opening brace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RAW_STRING = re.compile(r'"([^\s()\\]{0,16})\((.*?)\)\1"', re.S)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"?', re.S)
CHARACTER = re.compile(r"'(?:[^'\\\n]|\\.)*'?", re.S)
LINE_COMMENT = re.compile(r"//(?:[^\n\\]|\\\n|\\.)*")
BLOCK_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.S)
NUMBER = re.compile(r"\.?\d(?:'?\w|[eEpP][+-]|\.)*")
WORD = re.compile(r"[A-Za-z_]\w*")
RAW_PREFIXES = {"R", "LR", "uR", "UR", "u8R"}


@dataclass
class Piece:
    """A stretch of source text: kind is "code", "comment", "string" or "character"."""

    kind: str
    begin: int
    end: int


def pieces(text: str) -> list[Piece]:
    """The source as stretches that are not code, in order; what lies between them is code."""
    found = []
    at = 0
    while at < len(text):
        kind, match = _literal_or_comment(text, at)
        if match is None:
            skip = NUMBER.match(text, at) or WORD.match(text, at)
            word = skip.group() if skip else ""
            at = skip.end() if skip else at + 1
            raw = RAW_STRING.match(text, at) if word in RAW_PREFIXES else None
            if raw:
                found.append(Piece("string", at, raw.end()))
                at = raw.end()
            continue
        found.append(Piece(kind, at, match.end()))
        at = match.end()
    return found


def _literal_or_comment(text: str, at: int) -> tuple[str, re.Match | None]:
    character = text[at]
    if character == '"':
        return "string", STRING.match(text, at)
    if character == "'":
        return "character", CHARACTER.match(text, at)
    if text.startswith("//", at):
        return "comment", LINE_COMMENT.match(text, at)
    if text.startswith("/*", at):
        return "comment", BLOCK_COMMENT.match(text, at)
    return "", None


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def without_comments(text: str) -> str:
    """The text with comments turned into spaces; every line keeps its number."""
    return _replace(text, {"comment"})


def _replace(text: str, kinds: set[str]) -> str:
    out, at = [], 0
    for piece in pieces(text):
        if piece.kind not in kinds:
            continue
        out.append(text[at:piece.begin])
        body = _spaces(text[piece.begin:piece.end])
        if piece.kind == "string" and len(body) >= 2:
            body = '"' + body[1:-1] + '"'
        out.append(body)
        at = piece.end
    out.append(text[at:])
    return "".join(out)


def blank(text: str) -> str:
    """Code only: comments, the inside of strings, characters and preprocessor lines are spaces. Lines keep numbers."""
    lines = _replace(text, {"comment", "string", "character"}).split("\n")
    out = []
    continued = False
    branches: list[bool] = []  # for each open #if: is this its first branch
    for line in lines:
        directive = re.match(r"\s*#\s*(\w*)", line)
        if continued or directive:
            if directive and not continued:
                _follow(branches, directive.group(1))
            continued = line.rstrip().endswith("\\")
            out.append(" " * len(line))
        else:
            out.append(line if all(branches) else " " * len(line))
    return "\n".join(out)


def _follow(branches: list[bool], directive: str) -> None:
    if directive in ("if", "ifdef", "ifndef"):
        branches.append(True)
    elif directive in ("else", "elif", "elifdef", "elifndef") and branches:
        branches[-1] = False
    elif directive == "endif" and branches:
        branches.pop()


def count_lines(text: str) -> tuple[int, int]:
    """(comment lines, code lines). A line with both counts as both; blank lines count as neither."""
    comment_lines = set()
    for piece in pieces(text):
        if piece.kind == "comment":
            first = text.count("\n", 0, piece.begin)
            body = text[piece.begin:piece.end].split("\n")
            comment_lines.update(first + i for i, line in enumerate(body) if line.strip(" \t/*"))
    code_lines = sum(1 for line in without_comments(text).split("\n") if line.strip())
    return len(comment_lines), code_lines


@dataclass
class Function:
    """A function with a body, or a lambda outside of one. Lines count from 1; last is that of the closing brace."""

    name: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


class UnbalancedBraces(Exception):
    """The text has more of one brace than of the other, so lengths can't be told."""


def functions(text: str) -> list[Function]:
    """All functions of a source text, outermost only: what is inside a body belongs to that function."""
    return _Scanner(blank(text)).run()


TEMPLATE_HEAD = re.compile(r"\btemplate\s*<")
ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]|\b(?:alignas|__attribute__|declspec|explicit)\s*\((?:[^()]|\([^()]*\))*\)")
TYPE_HEAD = re.compile(r"^(?:typedef|static|constexpr|inline|export|const|friend|\s)*\b(?:class|struct|union|enum)\b")
NAMESPACE_HEAD = re.compile(r'\bnamespace\b[\s\w:]*$|^\s*extern\s+"\s*"\s*$')
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
OPERATOR_NAME = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+)")
ASSIGNMENT = re.compile(r"(?<![=!<>+\-*/%&|^])=(?!=)")
LAMBDA_HEAD = re.compile(
    r"\]\s*(?:<[^{}]*>\s*)?(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?"
    r"(?:mutable\b|constexpr\b|static\b|noexcept\b|\s)*(?:->[^{};=]*)?$")
REQUIRES_EXPRESSION = re.compile(r"\brequires\s*(?:\([^()]*\)\s*)?$")
FUNCTION_NAME = re.compile(r"(~?[A-Za-z_][\w:~]*|operator\s*\S+)\s*$")


def strip_templates(head: str) -> str:
    """The head of a declaration without its `template <...>` lists."""
    while match := TEMPLATE_HEAD.search(head):
        depth, at = 1, match.end()
        parentheses = 0
        while at < len(head) and depth:
            parentheses += {"(": 1, ")": -1}.get(head[at], 0)
            if parentheses == 0:
                depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[:match.start()] + " " + head[at:]
    return head


def outside_parentheses(head: str) -> str:
    """The head with everything inside (...) dropped; the parentheses stay."""
    out, depth = [], 0
    for character in head:
        if character == ")":
            depth -= 1
        if depth <= 0:
            out.append(character)
        if character == "(":
            depth += 1
    return "".join(out)


def classify(head: str) -> str:
    """What a brace after this text opens: "namespace", "type", "function", "lambda" or "value" (an initialiser)."""
    if NAMESPACE_HEAD.search(head):
        return "namespace"
    if LAMBDA_HEAD.search(head):
        return "lambda"
    if head.count("(") > head.count(")"):
        return "value"
    if REQUIRES_EXPRESSION.search(head):
        return "value"
    plain = outside_parentheses(ATTRIBUTE.sub(" ", strip_templates(head)))
    if TYPE_HEAD.search(plain) and "(" not in plain:
        return "type"
    named = OPERATOR_NAME.sub("operator", plain)
    if "(" not in named or ASSIGNMENT.search(named):
        return "value"
    # A constructor's `: a_{1}, b_{2} {`: the braces of its initialisers follow a name, those of its body don't.
    if re.search(r"\)[^()]*(?<!:):(?!:)", named) and re.search(r"[\w>]\s*$", named):
        return "value"
    return "function"


class _Scanner:
    """Follows the braces of one blanked text. stack holds what each open brace is."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.stack: list[str] = []
        self.begin = 0  # where the declaration under way begins
        self.found: list[Function] = []

    def run(self) -> list[Function]:
        at = 0
        while (at := self._next(at)) < len(self.code):
            character = self.code[at]
            if character == "{":
                at = self._open(at)
            elif character == "}":
                self._close(at)
            elif self._declaring() and self._parentheses(at) == 0:
                self.begin = at + 1
            at += 1
        if self.stack:
            raise UnbalancedBraces(f"{len(self.stack)} more {{ than }}")
        return self.found

    def _next(self, at: int) -> int:
        match = re.compile(r"[{};]").search(self.code, at)
        return match.start() if match else len(self.code)

    def _declaring(self) -> bool:
        return not self.stack or self.stack[-1] in ("namespace", "type")

    def _parentheses(self, at: int) -> int:
        return self.code.count("(", self.begin, at) - self.code.count(")", self.begin, at)

    def _head(self, at: int) -> tuple[str, int]:
        """Text of the declaration before a brace and where it begins, access specifiers left out."""
        begin = self.begin
        for match in ACCESS.finditer(self.code, begin, at):
            begin = match.end()
        return self.code[begin:at], begin

    def _open(self, at: int) -> int:
        """Handles the brace at `at`; a function's body is passed over whole. Returns the last place handled."""
        if not self._declaring():
            self.stack.append("value")
            return at
        head, begin = self._head(at)
        kind = classify(head)
        if kind not in ("function", "lambda"):
            self.stack.append(kind)
            if kind != "value":
                self.begin = at + 1
            return at
        end = self._end_of_block(at)
        begin += len(head) - len(head.lstrip())
        self.found.append(Function(_name(head), self._line(begin), self._line(end)))
        if kind == "function":  # a lambda is a part of a declaration that goes on
            self.begin = end + 1
        return end

    def _close(self, at: int) -> None:
        if not self.stack:
            raise UnbalancedBraces(f"line {self._line(at)}: }} without {{")
        if self.stack.pop() != "value":
            self.begin = at + 1

    def _end_of_block(self, at: int) -> int:
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.code, at):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return match.start()
        raise UnbalancedBraces(f"line {self._line(at)}: {{ without }}")

    def _line(self, at: int) -> int:
        return self.code.count("\n", 0, at) + 1


def _name(head: str) -> str:
    plain = re.sub(r"\brequires\s*\(\)", " ", outside_parentheses(strip_templates(head)))
    match = FUNCTION_NAME.search(plain.split("(", 1)[0])
    return match.group(1).strip() if match else "lambda"
