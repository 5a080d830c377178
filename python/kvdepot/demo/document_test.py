import unittest

from kvdepot.demo import document
from kvdepot.demo.testing.fake_run import encode


class Document(unittest.TestCase):
    def test_has_exactly_the_tokens_asked_for(self):
        self.assertEqual(len(document.document(encode)), 6912)
        for blocks in (1, 16, 53):
            self.assertEqual(len(document.document(encode, 2, blocks)), blocks * 128)

    def test_is_the_same_in_every_run(self):
        self.assertEqual(document.document(encode), document.document(encode))

    def test_other_seeds_share_no_first_block(self):
        firsts = {tuple(document.document(encode, seed, 16)[:128]) for seed in range(1, 40)}
        self.assertEqual(len(firsts), 39)

    def test_ends_where_a_question_can_follow(self):
        ending = encode(document.ENDING)
        self.assertEqual(document.document(encode)[-len(ending):], ending)

    def test_facts_that_questions_ask_for_are_in_it(self):
        log = document.entries(1)
        text = "".join(next(log) for _ in range(130))
        for _, answer in document.QUESTIONS:
            self.assertIn(answer, text)

    def test_a_tokenizer_that_yields_nothing_is_an_error_and_no_endless_loop(self):
        with self.assertRaises(ValueError):
            document.text_of_tokens(lambda text: [1], 1, 1000)


class Question(unittest.TestCase):
    def test_has_exactly_eight_tokens(self):
        for text, _ in document.QUESTIONS:
            self.assertEqual(len(document.question(encode, text)), 8)

    def test_ends_with_its_words(self):
        words = encode(" Who?")
        self.assertEqual(document.question(encode, "Who?")[-len(words):], words)

    def test_that_is_too_long_is_refused(self):
        with self.assertRaises(ValueError):
            document.question(encode, "x" * 100)


class FirstSentence(unittest.TestCase):
    def test_ends_at_a_full_stop_or_a_line_break(self):
        self.assertEqual(document.first_sentence(" Bruno. The boat"), "Bruno")
        self.assertEqual(document.first_sentence(" the\twall\nQ:"), "the wall")
        self.assertEqual(document.first_sentence(" no end"), "no end")
