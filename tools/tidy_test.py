"""Tests of tidy.py: for each rule a tree that keeps it and trees that break it."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tidy  # noqa: E402

UNFINISHED = "TO" + "DO"

# A small checkout that keeps all rules. Tests change single files of it.
GOOD = {
    "docs/architecture.md": "# Rooms\n\n`src/base/` results. `src/store/` the store. [It](architecture.md#rooms).\n",
    "include/kvdepot/client.h": "// The client. One per thread.\n#pragma once\n#include \"kvdepot/types.h\"\n"
                                "#include <span>\n// Blocks.\nint get();\n",
    "src/base/CMakeLists.txt": "kvd_room(base LEVEL 0\n  SOURCES result.cc)\n",
    "src/base/result.h": "// Result. Values.\n#pragma once\n// Never throws.\n#include <expected>\nint f();\n",
    "src/base/result.cc": "#include \"base/result.h\"\nint f() { return 1'000; }\n",
    "src/store/CMakeLists.txt": "kvd_room(store LEVEL 2\n  SOURCES pool.cc\n  TESTS pool_test.cc)\n",
    "src/store/pool.cc": "#include \"store/pool.h\"\n\n#include \"base/result.h\"\n",
    "src/store/pool.h": "// Pool. One per store.\n#pragma once\n",
    "src/store/pool_test.cc": "#include \"store/pool.h\"\n",
    "tools/a.py": "import os\n\n\ndef f():\n    return os.path.join('a', 'b')\n",
}


def long_function(lines: int) -> str:
    return "void f() {\n" + "  g();\n" * (lines - 2) + "}\n"


class TidyTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in GOOD.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def findings(self, rule: str) -> list[str]:
        return [str(f) for f in tidy.run(self.root, [rule])]

    def assert_clean(self, rule: str) -> None:
        self.assertEqual(self.findings(rule), [])

    def assert_found(self, rule: str, start: str) -> None:
        found = self.findings(rule)
        self.assertTrue(any(f.startswith(start) for f in found), f"{start!r} not in {found}")

    def test_a_good_tree_has_no_findings(self) -> None:
        self.assertEqual([str(f) for f in tidy.run(self.root, list(tidy.RULES))], [])

    # -- include

    def test_include_upwards_is_found(self) -> None:
        self.write("src/base/result.cc", "#include \"base/result.h\"\n#include \"store/pool.h\"\n")
        self.assert_found("include", "src/base/result.cc:2: include: room base (level 0) may not include room store")

    def test_include_sideways_is_found(self) -> None:
        self.write("src/wire/CMakeLists.txt", "kvd_room(wire LEVEL 2 SOURCES frame.cc)\n")
        self.write("src/wire/frame.cc", "#include \"store/pool.h\"\n")
        self.assert_found("include", "src/wire/frame.cc:1: include: room wire (level 2) may not include room store")

    def test_include_in_a_comment_does_not_count(self) -> None:
        self.write("src/base/result.cc", "// #include \"store/pool.h\"\n/*\n#include \"store/pool.h\"\n*/\n")
        self.assert_clean("include")

    def test_include_without_a_room_is_found(self) -> None:
        self.write("src/store/pool.cc", "#include \"pool.h\"\n")
        self.assert_found("include", "src/store/pool.cc:1: include: \"pool.h\" does not start at src/")

    def test_third_party_header_in_base_is_found(self) -> None:
        self.write("src/base/result.h", "// Result.\n#include <fmt/format.h>\n")
        self.assert_found("include", "src/base/result.h:2: include: headers of room base")

    # -- room

    def test_unlisted_source_is_found(self) -> None:
        self.write("src/store/index.cc", "\n")
        self.assert_found("room", "src/store/index.cc:1: room: not listed")

    def test_source_listed_in_a_comment_only_is_found(self) -> None:
        self.write("src/store/CMakeLists.txt", GOOD["src/store/CMakeLists.txt"] + "# index.cc\n")
        self.write("src/store/index.cc", "\n")
        self.assert_found("room", "src/store/index.cc:1: room: not listed")

    def test_folder_without_kvd_room_is_found(self) -> None:
        self.write("src/io/loop.h", "// Loop.\n")
        self.assert_found("room", "src/io/CMakeLists.txt:1: room: no kvd_room(io")

    def test_room_without_a_paragraph_is_found(self) -> None:
        self.write("docs/architecture.md", "`src/base/` only\n")
        self.assert_found("room", "docs/architecture.md:1: room: no paragraph on room store")

    # -- env

    def test_environment_read_is_found_outside_of_cmd(self) -> None:
        self.write("src/store/pool.cc", "const char* x = std::getenv(\"X\");\n")
        self.assert_found("env", "src/store/pool.cc:1: env: getenv")

    def test_environment_read_in_cmd_text_or_comment_is_fine(self) -> None:
        self.write("src/cmd/main.cc", "auto* x = getenv(\"NO_COLOR\");\n")
        self.write("src/store/pool.cc", "// getenv\nauto* x = \"getenv\"; int getenvelope;\n")
        self.assert_clean("env")

    def test_environment_read_in_python_is_found(self) -> None:
        for text in ("import os\nx = os.environ['A']\n", "import os as o\nx = o.getenv('A')\n",
                     "import os\nfrom os import environ\n"):
            with self.subTest(text=text):
                self.write("tools/a.py", text)
                self.assert_found("env", "tools/a.py:2: env:")

    def test_listed_python_module_may_read_the_environment(self) -> None:
        listed = next(iter(tidy.PYTHON_ENV))
        self.write(listed, "import os\nx = os.environ['A']\n")
        self.assert_clean("env")

    # -- length

    def test_long_file_is_found_and_tests_get_more(self) -> None:
        self.write("src/store/pool.cc", "\n" * 601)
        self.write("src/store/pool_test.cc", "\n" * 800)
        self.assertEqual(self.findings("length"), ["src/store/pool.cc:600: length: 601 lines, allowed are 600"])

    def test_long_test_file_is_found(self) -> None:
        self.write("src/store/pool_test.cc", "\n" * 801)
        self.assert_found("length", "src/store/pool_test.cc:800: length: 801 lines")

    def test_function_of_70_lines_is_fine_and_of_71_is_found(self) -> None:
        self.write("src/store/pool.cc", long_function(70))
        self.assert_clean("length")
        self.write("src/store/pool.cc", "\n" + long_function(71))
        self.assertEqual(self.findings("length"), ["src/store/pool.cc:2: length: f has 71 lines, allowed are 70"])

    def test_long_python_function_is_found(self) -> None:
        self.write("tools/a.py", "class A:\n    async def f(self):\n" + "        pass\n" * 70)
        self.assertEqual(self.findings("length"), ["tools/a.py:2: length: f has 71 lines, allowed are 70"])

    def test_long_line_is_found_in_code_not_in_prose(self) -> None:
        self.write("src/store/pool.cc", "// " + "x" * 118 + "\n")
        self.write("docs/a.md", "x" * 500 + "\n")
        self.assertEqual(self.findings("length"), ["src/store/pool.cc:1: length: 121 columns, allowed are 120"])

    def test_unbalanced_braces_are_found(self) -> None:
        self.write("src/store/pool.cc", "void f() {\n")
        self.assert_found("length", "src/store/pool.cc:1: length: braces do not balance")

    # -- comment

    def test_header_without_opening_comment_is_found(self) -> None:
        self.write("src/store/pool.h", "#pragma once\n// Pool.\n")
        self.assert_found("comment", "src/store/pool.h:1: comment: a header opens")

    def test_header_share_is_of_the_whole_room(self) -> None:
        code = "#pragma once\n" + "int x;\n" * 9
        self.write("src/store/pool.h", "// a\n" + code)
        self.assert_found("comment", "src/store:1: comment: comment/code in headers is 0.10")
        self.write("src/store/index.h", "// a\n" * 5)
        self.assert_clean("comment")

    # -- text, word, name

    def test_tab_trailing_space_and_missing_newline_are_found(self) -> None:
        self.write("docs/a.md", "a\tb\nc \nd")
        self.assertEqual([f.split(" ", 2)[2] for f in self.findings("text")],
                         ["a tab", "spaces at the end of the line", "no newline at the end of the file"])
        self.write("docs/a.md", "a\n")
        self.write("Makefile", "all:\n\techo\n")
        self.assert_clean("text")

    def test_an_unfinished_merge_is_found_in_results_too(self) -> None:
        for name in ("docs/results/a.md", "src/base/result.cc"):
            with self.subTest(name=name):
                self.write(name, "a\n" + "<" * 7 + " HEAD\nb\n=======\nc\n" + ">" * 7 + " main\n")
                self.assert_found("text", f"{name}:2: text: a merge was not finished here")
                self.assert_found("text", f"{name}:6: text: a merge was not finished here")

    def test_unfinished_work_is_found(self) -> None:
        for text in (f"// {UNFINISHED}: later", "it holds " + "for" + " now", "a Place" + "holder", "x" + " X" + "XX"):
            with self.subTest(text=text):
                self.write("docs/a.md", text + "\n")
                self.assert_found("word", "docs/a.md:1: word:")

    def test_words_inside_other_words_are_fine(self) -> None:
        text = "mktemp /tmp/a.XXXXXX, todo lists, for nowhere, for now in x, work/main, https://a.example/work/b\n"
        self.write("docs/a.md", text)
        self.assert_clean("word")

    def test_path_of_one_machine_is_found(self) -> None:
        self.write("docs/a.md", "see /ho" + "me/jo/x\n")
        self.assert_found("word", "docs/a.md:1: word:")

    def test_vague_and_mixed_case_names_are_found(self) -> None:
        for name in ("src/store/pool_manager.h", "src/store/utils.cc", "src/store/PoolBuffer.h", "tools/helper.py"):
            with self.subTest(name=name):
                self.write(name, "// a\n")
                self.assert_found("name", f"{name}:1: name:")
                (self.root / name).unlink()
        self.write("src/store/commonality.h", "// a\n")
        self.assert_clean("name")

    # -- public, link

    def test_more_than_ten_public_headers_are_found(self) -> None:
        for i in range(10):
            self.write(f"include/kvdepot/h{i}.h", "// a\n")
        self.assert_found("public", "include/kvdepot:1: public: 11 headers")

    def test_public_header_that_includes_a_room_is_found(self) -> None:
        self.write("include/kvdepot/client.h", "// a\n#include \"base/result.h\"\n")
        self.assert_found("public", "include/kvdepot/client.h:2: public:")

    def test_link_to_a_missing_file_is_found(self) -> None:
        self.write("README.md", "a\n[d](docs/none.md#x) ![p](pic.png)\n\n[r]: docs/gone.md\n")
        self.assertEqual([f.split(" ")[2] for f in self.findings("link")], ["docs/none.md", "pic.png", "docs/gone.md"])

    def test_links_to_files_pages_and_in_code_are_fine(self) -> None:
        self.write("README.md", "[d](docs/architecture.md#x) [w](https://a.example/b) [h](#here) `[c](none.md)`\n"
                                "```\n[c](none.md)\n```\n[dir](docs/) [root](/docs/architecture.md)\n")
        self.assert_clean("link")

    def test_python_that_does_not_parse_is_found(self) -> None:
        self.write("tools/a.py", "def f(:\n")
        self.assert_found("length", "tools/a.py:1: text: does not parse")

    def test_committed_results_are_not_looked_at(self) -> None:
        self.write("docs/results/soak.md", "a\tb \n")
        self.assert_clean("text")


if __name__ == "__main__":
    unittest.main()
