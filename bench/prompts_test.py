import unittest

from bench import prompts


class Prose(unittest.TestCase):
    def test_the_same_seed_gives_the_same_text(self):
        self.assertEqual(prompts.prose("a", 300), prompts.prose("a", 300))

    def test_is_as_long_as_asked_for(self):
        for words in (1, 100, 7000):
            self.assertGreaterEqual(len(prompts.prose("b", words).split()), words)

    def test_a_longer_text_begins_with_the_shorter_one(self):
        self.assertTrue(prompts.prose("c", 2000).startswith(prompts.prose("c", 200)))

    def test_texts_of_different_seeds_differ_from_the_beginning(self):
        openings = {prompts.prose(f"seed {number}", 50)[:60] for number in range(300)}
        self.assertEqual(len(openings), 300)

    def test_does_not_repeat_itself(self):
        sentences = [s for p in prompts.prose("d", 6000).split("\n\n") for s in p.split(". ")]
        self.assertGreater(len(set(sentences)) / len(sentences), 0.8)

    def test_has_no_templates_left_in_it(self):
        text = prompts.prose("e", 3000) + prompts.question("e")
        self.assertNotIn("{", text)
        self.assertNotIn("|", text)
        self.assertNotIn("  ", text)


if __name__ == "__main__":
    unittest.main()
