"""Tests of cpp_scan.py: what counts as comment, code, function."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cpp_scan  # noqa: E402


def spans(text: str) -> list[tuple[str, int, int]]:
    return [(f.name, f.first, f.last) for f in cpp_scan.functions(text)]


class BlankTest(unittest.TestCase):
    def test_comments_strings_and_characters_are_blanked(self) -> None:
        text = 'a // {\nb /* {\n{ */ c "{\\"{" d \'{\' e\n'
        self.assertNotIn("{", cpp_scan.blank(text))
        self.assertEqual(cpp_scan.blank(text).split("\n")[2].split(), ["c", '"', '"', "d", "e"])

    def test_raw_strings_end_at_their_own_delimiter(self) -> None:
        for text in ('R"({"a": "b"})" {', 'u8R"x(" )" } )x" {', 'LR"(\n}\n)" {'):
            with self.subTest(text=text):
                self.assertEqual(cpp_scan.blank(text).count("{") - cpp_scan.blank(text).count("}"), 1)

    def test_name_that_ends_in_r_is_no_raw_string(self) -> None:
        self.assertEqual(cpp_scan.blank('VAR"(" {').count("{"), 1)

    def test_digit_separators_are_no_characters(self) -> None:
        self.assertEqual(cpp_scan.blank("int x = 1'000'000; {").count("{"), 1)
        self.assertEqual(cpp_scan.blank("int x = 0xFF'FFu; char c = '}'; {").count("}"), 0)

    def test_line_numbers_stay(self) -> None:
        text = '/*\n\n*/ R"(\n)" #x\n#define A { \\\n  {\nint b;\n'
        self.assertEqual(cpp_scan.blank(text).count("\n"), text.count("\n"))
        self.assertEqual(cpp_scan.blank(text).split("\n")[6], "int b;")

    def test_preprocessor_lines_and_other_branches_are_blanked(self) -> None:
        text = "#if A\nvoid f() {\n#else\nvoid g() {\n#endif\n}\n#define X {\n"
        self.assertEqual(spans(text), [("f", 2, 6)])

    def test_continued_line_comment_goes_on(self) -> None:
        self.assertEqual(cpp_scan.blank("// a \\\n{\n").strip(), "")

    def test_comment_lines_and_code_lines(self) -> None:
        text = "// a\n\nint x;  // b\n/*\n * c\n */\nint y; /* d */ int z;\n//\n"
        self.assertEqual(cpp_scan.count_lines(text), (4, 2))

    def test_two_slashes_in_a_string_are_no_comment(self) -> None:
        self.assertEqual(cpp_scan.count_lines('auto u = "http://a";\n'), (0, 1))


class FunctionsTest(unittest.TestCase):
    def test_free_functions_and_methods(self) -> None:
        text = ("namespace a::b {\nint f() {\n  return 1;\n}\nclass C final : public D<int> {\n public:\n"
                "  int m() const noexcept override {\n    return 2;\n  }\n  int x_{0};\n};\n}\n")
        self.assertEqual(spans(text), [("f", 2, 4), ("m", 7, 9)])

    def test_signature_counts_from_its_first_line(self) -> None:
        self.assertEqual(spans("\ntemplate <class T>\nauto f(int a,\n       int b)\n    -> T {\n}\n"), [("f", 2, 6)])

    def test_constructor_with_braced_initialisers(self) -> None:
        text = "C::C(int a) noexcept\n    : Base<int>{a}, a_{a}, b_(f({1, 2})) {\n  g();\n}\nvoid f() {\n}\n"
        self.assertEqual(spans(text), [("C::C", 1, 4), ("f", 5, 6)])

    def test_lambda_inside_belongs_to_its_function(self) -> None:
        self.assertEqual(spans("void f() {\n  auto g = [&](int x) {\n    return x;\n  };\n}\n"), [("f", 1, 5)])

    def test_lambda_outside_of_a_function_counts(self) -> None:
        self.assertEqual([s[1:] for s in spans("const auto f = [](int x) -> int {\n  return x;\n};\nvoid g() {\n}\n")],
                         [(1, 3), (4, 5)])

    def test_lambda_as_an_argument_outside_of_a_function_counts(self) -> None:
        text = "INSTANTIATE(A, B, Values(1), [](const auto& i) {\n  return i.name;\n});\nvoid g() {\n}\n"
        self.assertEqual([s[1:] for s in spans(text)], [(1, 3), (4, 5)])

    def test_values_types_and_default_arguments_are_no_functions(self) -> None:
        text = ("constexpr std::array<int, 2> kA = {\n  1, 2};\nint x{3};\nenum class E : uint8_t {\n  kA\n};\n"
                "struct alignas(64) S {\n  int a = 0;\n};\nvoid f(Options o = {}, int b = 2) {\n}\n"
                "concept C = requires(T t) {\n  t.x();\n};\nstruct [[nodiscard]] R {\n};\n")
        self.assertEqual(spans(text), [("f", 10, 11)])

    def test_operators(self) -> None:
        text = ("bool operator==(const A& o) const {\n}\nA& operator=(A&&) {\n}\nint operator()(int x) {\n}\n"
                "explicit operator bool() const {\n}\nauto operator<=>(const A&) const {\n}\n")
        self.assertEqual([s[1:] for s in spans(text)], [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)])

    def test_template_defaults_and_requires(self) -> None:
        text = ("template <typename T = int, int N = (3 > 2)>\n  requires(N == 3)\nvoid f() {\n}\n"
                "template <typename T> class C {\n  template <typename U = T> void g() {\n  }\n};\n")
        self.assertEqual(spans(text), [("f", 1, 4), ("g", 6, 7)])

    def test_extern_c_block_is_a_namespace(self) -> None:
        self.assertEqual(spans('extern "C" {\nint f() {\n}\n}\nextern "C" int g() {\n}\n'), [("f", 2, 3), ("g", 5, 6)])

    def test_function_try_and_trailing_words(self) -> None:
        self.assertEqual([s[1:] for s in spans("int main() try {\n} catch (...) {\n}\n")][0], (1, 2))

    def test_gtest_case(self) -> None:
        self.assertEqual(spans("TEST(Pool, Frees) {\n  if (x) {\n  }\n}\n"), [("TEST", 1, 4)])

    def test_unbalanced_braces_are_refused(self) -> None:
        for text in ("void f() {", "}\n", "namespace a {\n"):
            with self.subTest(text=text), self.assertRaises(cpp_scan.UnbalancedBraces):
                cpp_scan.functions(text)


if __name__ == "__main__":
    unittest.main()
