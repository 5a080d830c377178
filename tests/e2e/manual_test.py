"""The manual pages and the program agree on its flags: each flag of a verb is on the verb's page, and each flag that a
page names exists.

    python -m unittest -v tests.e2e.manual_test
"""

import re
import subprocess
import unittest
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"serve": "kvdepot", "top": "kvdepot", "bench": "kvdepot", "token": "kvdepot", "inspect": "inspect",
         "verify": "inspect", "plan": "plan", "sim": "sim"}
OTHERS = ("resp", "sizing", "observability", "troubleshooting")     # pages that have no verb of their own
VLLMS = {"--max-model-len"}
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
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return {flag for line in text.splitlines() if "cmake" not in line for flag in FLAG.findall(line)}


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

    def test_each_flag_that_a_page_names_exists(self):
        known = set().union(*self.verbs.values())
        for page in sorted({*PAGES.values(), *OTHERS}):
            with self.subTest(page=page):
                self.assertEqual(flags_in(page) - known - VLLMS, set())


if __name__ == "__main__":
    unittest.main()
