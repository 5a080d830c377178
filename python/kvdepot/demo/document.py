"""The demo's text: the log of a lighthouse, generated, the same in every run. Pure.

Every entry holds the weather, a passing ship and two things that happened; a few facts come up again and again (the
dog is called Bruno, the boat is the Pelican), and those are what the questions ask for, so that a model of 135 million
parameters has a chance to answer. Another seed gives other entries from the first token on: nothing of one
document is ever found under the keys of another.

Lengths are exact, whatever the tokenizer: a document is cut to a whole number of KV blocks at its beginning (as if the
first pages were torn out), a question is padded at its beginning with line breaks.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable

Encode = Callable[[str], list[int]]

BLOCK_TOKENS = 128          # vLLM's CPU build
DOCUMENT_BLOCKS = 54
QUESTION_TOKENS = 8
ENTRY_TOKENS_MIN = 20       # shorter than any entry in any tokenizer worth the name; bounds the loop below

KINDS = ("brig", "schooner", "barque", "ketch", "cutter", "steamer", "sloop", "trawler")
CARGOES = ("oranges", "coal", "salt", "timber", "wool", "slate", "tea", "copper", "barley", "herring", "bricks",
           "glass", "paper", "sugar", "iron", "tar", "rope", "linen", "cork", "marble", "rice", "tin", "apples")
PORTS = ("Leith", "Bergen", "Hull", "Riga", "Lerwick", "Gdansk", "Rouen", "Porto", "Malmo", "Dundee", "Bremen")
WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
SKIES = ("clear, with a long swell", "overcast", "rain until noon, then clearing", "fog in the morning",
         "bright and cold", "showers of hail", "mild and still", "low cloud over the sound", "snow at dusk")
EVENTS = (
    "Bruno, the dog, found an old oar on the slip.", "Bruno, the dog, barked at a seal until dark.",
    "The dog Bruno slept by the stove.", "We took our boat, the Pelican, out and lifted the creels.",
    "We tarred our boat, the Pelican.", "The Pelican, our boat, was hauled up before the swell came.",
    "Ida, the head keeper, trimmed the wicks.", "Ida, the head keeper, wound the clockwork twice.",
    "Tomas, the cook, baked bread for the week.", "Tomas, the cook, made a stew of ling and kale.",
    "Tomas, the cook, found the flour short.", "The bell on the east wall rang in the fog.",
    "The bell on the east wall was painted.", "The relief ship came with letters and a sack of potatoes.",
    "Geese went over, very high.", "Porpoises in the sound.", "Nobody came.", "The barometer fell all day.",
    "The hens gave four eggs.", "We planted kale behind the wall.", "Two fishermen sheltered under the rock.",
    "A letter came from Lerwick.", "An inspector looked at everything and said little.",
)
ENDING = "\nThis is the end of the log. From it we know: the lighthouse stands on Skerra Rock."

# What each question should be answered with is shown beside the answer; the demo makes no claim about it.
QUESTIONS = (
    ("The name of the dog is", "Bruno"),
    ("The name of the boat is", "the Pelican"),
    ("The name of the cook is", "Tomas"),
    ("The bell hangs on", "the east wall"),
    ("The cook made a stew of", "ling and kale"),
)


def entries(seed: int):
    """Entry after entry, without end."""
    rng = random.Random(seed)
    day = datetime.date(1880 + seed % 40, rng.randint(1, 12), rng.randint(1, 28))
    while True:
        events = " ".join(rng.sample(EVENTS, 2))
        yield (f"{day.day} {day:%B} {day.year}. Wind {rng.choice(WINDS)}, force {rng.randint(1, 9)}; "
               f"{rng.choice(SKIES)}. A {rng.choice(KINDS)} passed, bound for {rng.choice(PORTS)} with "
               f"{rng.choice(CARGOES)}. {events}\n")
        day += datetime.timedelta(days=rng.randint(1, 3))


def text_of_tokens(encode: Encode, seed: int, tokens: int, ending: str = "") -> list[int]:
    """Exactly `tokens` token ids of one log, the last of them `ending`."""
    log = entries(seed)
    text = "".join(next(log) for _ in range(1 + tokens // 50))
    ids = encode(text + ending)
    for _ in range(1 + tokens // ENTRY_TOKENS_MIN):
        if len(ids) >= tokens:
            return ids[len(ids) - tokens:]
        text += next(log)
        ids = encode(text + ending)
    raise ValueError(f"a log of {len(text)} characters has only {len(ids)} tokens")


def document(encode: Encode, seed: int = 1, blocks: int = DOCUMENT_BLOCKS) -> list[int]:
    """A whole number of KV blocks that ends where a question can follow."""
    return text_of_tokens(encode, seed, blocks * BLOCK_TOKENS, ENDING)


def question(encode: Encode, text: str) -> list[int]:
    """Exactly QUESTION_TOKENS token ids: line breaks, then the question."""
    ids = encode(" " + text)
    breaks = encode("\n")[-1:]
    if len(ids) > QUESTION_TOKENS:
        raise ValueError(f"the question {text!r} has {len(ids)} tokens, more than {QUESTION_TOKENS}")
    return breaks * (QUESTION_TOKENS - len(ids)) + ids


def first_sentence(answer: str) -> str:
    """What a reader wants to see of a completion: up to the end of its first sentence, on one line."""
    for end in (".", "\n"):
        head, mark, _ = answer.strip().partition(end)
        if mark:
            answer = head
    return " ".join(answer.split())
