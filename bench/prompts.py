"""Prose for prompts: plausible English made of templates, the same for the same seed, different for another.

Benchmarks need prompts that no cache has seen, of any length, without shipping a corpus: every seed gives another
text from its first words on, so two prompts of different seeds share no block of tokens. Pure.
"""

from __future__ import annotations

import random

PLACES = """harbour observatory archive mill station orchard library foundry lighthouse quarry market bakery
tannery ferry monastery workshop vineyard reservoir tavern printing-house greenhouse dockyard chapel barracks""".split()
PEOPLE = """Adela Bruno Clara Dimitri Edith Farid Greta Hiro Ines Jonas Katya Lucien Marta Nadir Odile Pavel Quentin
Rosa Stefan Tamar Ulrich Vera Wanda Yusuf Zelda""".split()
TRADES = """surveyor clockmaker botanist translator engineer midwife carpenter cartographer teacher sailor printer
weaver chemist archivist mason pilot baker geologist notary gardener""".split()
THINGS = """ledger barometer loom telescope letter map compass bell engine seal violin lantern contract seedling
anchor mirror kettle portrait calendar chisel valve notebook ladder prism""".split()
QUALITIES = """rusted narrow unfinished polished borrowed forgotten heavy transparent crooked silent painted brittle
spare foreign patient uneven careful bright hollow stubborn""".split()
VERBS = """repaired measured hid described sold copied carried lost weighed lent cleaned opened doubted drew traded
inspected buried admired labelled returned""".split()
REASONS = """because the river had risen overnight|although nobody had asked for it|before the inspectors arrived
|while the others argued about the price|since the old method had failed twice|so that the records would agree
|in spite of the frost|as the committee had ordered|without telling the apprentices
|when the second bell rang""".replace("\n", "").split("|")
CLOSINGS = """Nothing more was said about it.|The cost was entered in the margin.|It took three days.
|Two witnesses signed the page.|The weather turned soon after.|A copy was sent to the capital.
|Later accounts differ on this point.|The matter rested there until spring.""".replace("\n", "").split("|")


def prose(seed: str, words: int) -> str:
    """At least `words` words of text; paragraphs of four to eight sentences, numbered sections now and then."""
    rng = random.Random(seed)
    paragraphs: list[str] = [f"Report {rng.randrange(10_000, 99_999)} of {rng.choice(PEOPLE)} {rng.choice(PEOPLE)}son."]
    count = len(paragraphs[0].split())
    while count < words:
        sentences = [_sentence(rng) for _ in range(rng.randrange(4, 9))]
        if rng.random() < 0.25:
            sentences.insert(0, f"{len(paragraphs)}. On the {rng.choice(QUALITIES)} {rng.choice(THINGS)}.")
        if rng.random() < 0.4:
            sentences.append(rng.choice(CLOSINGS))
        paragraphs.append(" ".join(sentences))
        count += len(paragraphs[-1].split())
    return "\n\n".join(paragraphs)


def question(seed: str) -> str:
    """A short question that could follow such a text."""
    rng = random.Random("question " + seed)
    return rng.choice((
        f"Who {rng.choice(VERBS)} the {rng.choice(THINGS)}, and why did {rng.choice(PEOPLE)} object?",
        f"What did {rng.choice(PEOPLE)} say about the {rng.choice(THINGS)} in the {rng.choice(PLACES)}?",
        f"Why was the {rng.choice(THINGS)} kept in the {rng.choice(PLACES)} after {rng.randrange(1700, 1990)}?",
    ))


def _sentence(rng: random.Random) -> str:
    person, trade, thing = rng.choice(PEOPLE), rng.choice(TRADES), rng.choice(THINGS)
    quality, place, verb = rng.choice(QUALITIES), rng.choice(PLACES), rng.choice(VERBS)
    return rng.choice((
        f"In {rng.randrange(1700, 1990)} {person} {verb} the {quality} {thing} at the {place} {rng.choice(REASONS)}.",
        f"{person}, a {trade} from the {place}, {verb} {rng.randrange(2, 90)} of the {thing}s {rng.choice(REASONS)}.",
        f"The {thing} that {person} {verb} was {quality}, and the {trade} {rng.choice(VERBS)} it at once.",
        f"Nobody in the {place} knew why the {trade} {verb} a {quality} {thing} worth {rng.randrange(3, 900)} crowns.",
        f"\"A {quality} {thing} is of no use to a {rng.choice(TRADES)},\" said {person} {rng.choice(REASONS)}.",
        f"After {rng.randrange(2, 60)} weeks the {place} {verb} its {thing}, {rng.choice(REASONS)}.",
    ))
