"""The manual pages agree with the programs: each verb and each flag is on the verb's page, each verb, flag and `make`
command that a page names exists, and nothing that can be called is without a page.

    python -m unittest -v tests.e2e.manual_test
"""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {"serve": "kvdepot", "top": "kvdepot", "bench": "kvdepot", "token": "kvdepot", "inspect": "inspect",
         "verify": "inspect", "plan": "plan", "sim": "sim"}
# Flags on pages that are other programs': vLLM's, curl's, pip's, those of benchmarks and tests.
OTHERS = {
    "benchmarks": {"--bench", "--build-dir", "--check", "--keep", "--only", "--quick", "--runs"},
    "installing": {"--cflags", "--dry-run", "--libs", "--no-build-isolation", "--no-deps", "--now"},
    "security": {"--cacert", "--cert", "--key", "--signal", "--system", "--tls"},
    "testing": {"--seconds"}, "troubleshooting": {"--max-model-len"}, "upgrading": {"--max-model-len"},
    "vllm": {"--async-scheduling", "--kv-transfer-config", "--max-model-len", "--prefix-caching-hash-algo"}}
PLANS = {"plan-several-devices", "status"}      # of what there is not yet
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def helped(verb):
    return subprocess.run(["kvdepot", *verb, "--help"], capture_output=True, text=True, check=True).stdout


def listed(text, title):
    """First words of the lines below a heading of a --help."""
    part = re.search(rf"^{title}:\n((?: .*\n)+)", text, re.M)
    return [line.split()[0] for line in part[1].splitlines() if re.match(r"  \S", line)] if part else []


def flags_of_verbs():
    """Verb, as a tuple of words -> its flags."""
    found, todo = {}, [()]
    while todo:
        verb = todo.pop()
        text = helped(verb)
        found[verb] = {flag for word in listed(text, "Options") for flag in FLAG.findall(word)}
        todo += [(*verb, name) for name in listed(text, "Subcommands")]
    return found


def flags_in(page):
    """Of the program: lines about building it name flags of cmake."""
    return {flag for line in text_of(page).splitlines() if "cmake" not in line for flag in FLAG.findall(line)}


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def pages():
    return sorted(page.stem for page in DOCS.glob("*.md") if page.stem not in PLANS)


def verbs_in(text):
    """Verbs of the program that a text calls, as tuples of at most two words; `a|b` are two of them."""
    calls = re.findall(r"(?:`|^ {4,}|\| |&& )(?:[A-Z_]+=\S+ )*kvdepot ([a-z|]+)(?: ([a-z|]+)(?![\w.:/=-]))?", text,
                       re.M)
    return {(a, b) for firsts, seconds in calls for a in firsts.split("|") for b in seconds.split("|")}


def make_commands():
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.verbs = flags_of_verbs()

    def test_there_are_verbs_and_flags(self):
        self.assertIn("--pool", self.verbs["serve",])
        self.assertIn("--vary", self.verbs["sim", "sweep"])
        self.assertIn("--tls-server-name", self.verbs["bench", "net"])

    def test_each_flag_is_on_the_page_of_its_verb(self):
        for verb, flags in self.verbs.items():
            with self.subTest(verb=" ".join(verb)):
                page = PAGES[verb[0]] if verb else "kvdepot"
                self.assertEqual(flags - {"--help"} - flags_in(page), set())

    def test_each_verb_has_a_page_that_calls_it_and_is_in_the_synopsis(self):
        synopsis = verbs_in(re.search(r"## Synopsis\n(.*?)\n## ", text_of("kvdepot"), re.S)[1])
        for verb in self.verbs:
            with self.subTest(verb=" ".join(verb)):
                if verb:
                    self.assertIn(verb[0], {first for first, _ in synopsis})
                    self.assertIn(verb[0], PAGES)
                    called = verbs_in(text_of(PAGES[verb[0]])) | synopsis
                    self.assertIn((*verb, "")[:2] if len(verb) == 1 else verb,
                                  called | {(first, "") for first, _ in called})

    def test_each_verb_that_a_page_calls_exists(self):
        with_verbs = {verb[0] for verb in self.verbs if len(verb) > 1}
        texts = {page: text_of(page) for page in pages()}
        texts |= {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "CONTRIBUTING.md")}
        called = 0
        for page, text in texts.items():
            for first, second in sorted(verbs_in(text)):
                called += 1
                with self.subTest(page=page, verb=f"{first} {second}"):
                    self.assertIn((first,), self.verbs)
                    if second and first in with_verbs:
                        self.assertIn((first, second), self.verbs)
        self.assertGreater(called, 20)

    def test_each_flag_that_a_page_names_exists(self):
        known = set().union(*self.verbs.values())
        demo = self.demo_flags()
        for page in pages():
            with self.subTest(page=page):
                self.assertEqual(flags_in(page) - known - OTHERS.get(page, set()) - (demo if page == "demo" else set()),
                                 set())

    @staticmethod
    def demo_flags():
        text = (ROOT / "python" / "kvdepot" / "demo" / "__main__.py").read_text(encoding="utf-8")
        return set(re.findall(r'add_argument\("(--[a-z-]+)"', text))

    def test_each_flag_of_the_demo_is_on_its_page(self):
        self.assertIn("--only", self.demo_flags())
        self.assertEqual(self.demo_flags(), flags_in("demo"))

    def test_each_make_command_is_on_a_page_and_each_that_a_page_names_exists(self):
        texts = [page.read_text(encoding="utf-8") for page in
                 (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")]
        named = {name for text in texts for name in re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.M)}
        self.assertEqual(named - make_commands(), set())
        self.assertEqual(make_commands() - named - {"help"}, set())


if __name__ == "__main__":
    unittest.main()
