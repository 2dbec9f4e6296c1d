"""Nouns and noun phrases of English captions, found by how words are used in them: no tagger, nothing to download.

A word is a noun if captions use it at the end of noun phrases: after a determiner, an adjective or a preposition, and
before a preposition, an auxiliary or the end ("a brown *dog* is on the *grass*"). Adjectives stand at the beginning of
such phrases and seldom at their end; verbs are not preceded by determiners. The lists here are the closed classes of
English (determiners, prepositions, auxiliaries, pronouns), irregular plurals, and nouns that name no thing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VERSION = 1
"""Goes up with every change that finds other phrases in the same captions."""
NOUN_SHARE, GERUND_SHARE, LEAST_USES = 0.2, 0.45, 2
"""The share of a word's uses that must stand at the end of a noun phrase; of words in -ing; and how many at least."""
ADJECTIVE_SHARE, ADJECTIVE_ENDS, DESCRIBING_SHARE = 0.3, 0.2, 0.4
"""Of an adjective's uses, those that begin a noun phrase at least, that end one at most, and that stand before a noun
or another adjective at least: "its tongue hanging out" makes no adjective of the tongue."""
RELATIONAL_SHARE = 0.45
"""A noun so often followed by "of" names no thing: a group of people, the side of a house."""
COUNTABLE_SHARE = 0.2
"""Of a noun's uses, those with "a" or in the plural, for "a dog" and not "a grass"."""

Clause = tuple[str, ...]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


INDEFINITE = _words("a an one another each every")
DETERMINERS = INDEFINITE | _words(
    "the his her its their my your our some several two three four five six seven eight nine ten many both few"
)
PREPOSITIONS = _words(
    "in on at with of near by from into onto over under behind beside through across along around against above below "
    "beneath between among amongst inside outside off toward towards to for up down during after before as past upon "
    "about like without within atop alongside underneath"
)
AUXILIARIES = _words("is are was were be been being has have had do does did can could will would may might must")
RELATIVES = _words("who which that whose where when while")
FUNCTION_WORDS = (
    DETERMINERS
    | PREPOSITIONS
    | AUXILIARIES
    | RELATIVES
    | _words(
        "and or but it he she they them him himself herself itself themselves what there here then not very so too "
        "also just out together all more most i you we us me if than because no any this these those other others "
        "next away back forward ahead apart someone something somebody anyone everyone nobody nothing hers theirs "
        "being not yet only even still almost nearly while though although since until way ready"
    )
)
_PHRASE_ENDS = PREPOSITIONS | AUXILIARIES | RELATIVES
_PHRASE_STARTS = DETERMINERS | (PREPOSITIONS - _words("to as up down off like"))
QUANTIFIERS = _words(
    "different various same own first second third last single multiple numerous more less least many much half whole "
    "entire certain such similar couple dozen hundred opposite main general full top left right front far close near "
    "middle center upper lower hand side high"
)
"""Words before a noun that describe nothing to be seen in it."""
SHADES = _words("light dark bright pale deep")
"""Words that describe a colour behind them."""
NO_THINGS = _words(
    "air background foreground distance middle center centre side front back top bottom edge end corner rest part "
    "left right group couple pair bunch pile piece number lot kind type sort set row line view picture photo "
    "photograph image shot close closeup close-up scene camera day night time morning afternoon evening year way "
    "area place spot space direction position action event activity moment turn fun mid midair mid-air body use "
    "form style design name word words color colour shape size level bit stop start look run walk ride play show "
    "jump trick stunt flight game race match move dive swim climb kick catch throw jog hike pose smile laugh talk "
    "feature reach half cold dark short tall big small large long high low young old white black red blue green "
    "yellow brown pink purple grey gray tan golden blond blonde variety series display amount object item thing "
    "stuff attempt opposite inside outside progress interest attention case sunny mid-jump mid-flight midst past "
    "future public"
)
"""Nouns that name no part of a picture, and what captions also use as nouns: places in the picture, measures, acts."""
IDIOMS = frozenset({"hot dog", "teddy bear", "sea lion", "sea horse", "guinea pig", "prairie dog"})
"""Names that are no case of their last word."""
IRREGULAR = {
    **{"men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "teeth": "tooth"},
    **{"mice": "mouse", "geese": "goose", "wolves": "wolf", "leaves": "leaf", "loaves": "loaf", "knives": "knife"},
    **{"shelves": "shelf", "scarves": "scarf", "calves": "calf", "halves": "half", "wives": "wife"},
    **{"oxen": "ox", "dice": "die", "cacti": "cactus", "hooves": "hoof", "elves": "elf", "thieves": "thief"},
}
PLURAL_ONLY = _words(
    "glasses sunglasses goggles jeans shorts pants trousers tights leggings overalls scissors clothes woods stairs "
    "bleachers headphones binoculars pajamas pyjamas sweatpants briefs trunks khakis slacks sports news fries "
    "greens"
)
"""Words in -s that are no plural of another noun, or mean something else."""


@dataclass(frozen=True)
class NounPhrase:
    """A noun in the singular, what stands before it, and whether "a" introduces it or it was in the plural."""

    noun: str
    modifiers: tuple[str, ...] = ()
    is_counted: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The noun with each of its modifiers: "brown dog", "large dog"."""
        return frozenset(f"{modifier} {self.noun}" for modifier in self.modifiers)


class NounPhraseFinder:
    """Finds noun phrases in captions, by a lexicon learned from captions.

    Attributes:
        nouns, adjectives: The lexicon; nouns in the singular.
        countable: The nouns that captions use with "a".

    Example:
        >>> captions = ["A brown dog is on the grass .", "The dog has a red ball in its mouth .", "A red ball ."]
        >>> captions += ["A brown dog with a ball .", "The grass is by a dog ."]
        >>> finder = NounPhraseFinder(captions)
        >>> [phrase.names or phrase.noun for phrase in finder.find("Two brown dogs on grass")]
        [frozenset({'brown dog'}), 'grass']
    """

    def __init__(self, captions: Iterable[str]) -> None:
        clauses = Counter(clause for caption in captions for clause in split_clauses(caption))
        self._vocabulary = frozenset(word for clause in clauses for word in clause)
        self._folded: dict[str, str] = {}
        self.adjectives = self._learn_adjectives(clauses)
        self.nouns = self._learn_nouns(clauses)
        self.adjectives = self._learn_adjectives(clauses, self.adjectives | self.nouns)
        self.nouns = self._learn_nouns(clauses)
        uses, counted = Counter[str](), Counter[str]()
        for clause, times in clauses.items():
            for phrase in self._parse(clause):
                uses[phrase.noun] += times
                counted[phrase.noun] += times * phrase.is_counted
        self.countable = frozenset(noun for noun, count in uses.items() if counted[noun] >= COUNTABLE_SHARE * count)

    def _learn_adjectives(self, clauses: Counter[Clause], describable: frozenset[str] | None = None) -> frozenset[str]:
        """describable: what adjectives stand before; None: not known yet."""
        uses, starts, ends, before = (Counter[str]() for _ in range(4))
        for clause, times in clauses.items():
            for previous, word, following in _neighbours(clause):
                if word not in FUNCTION_WORDS:
                    uses[word] += times
                    starts[word] += times * (previous in DETERMINERS)
                    ends[word] += times * (following == "" or following in _PHRASE_ENDS)
                    if describable is not None:
                        before[word] += times * (following == "and" or self.fold(following) in describable)
        return frozenset(
            word
            for word, count in uses.items()
            if starts[word] >= max(LEAST_USES, ADJECTIVE_SHARE * count)
            and ends[word] <= ADJECTIVE_ENDS * count
            and (describable is None or before[word] >= DESCRIBING_SHARE * count)
        )

    def _learn_nouns(self, clauses: Counter[Clause]) -> frozenset[str]:
        uses, whole, of = (Counter[str]() for _ in range(3))
        for clause, times in clauses.items():
            for previous, word, following in _neighbours(clause):
                if word not in FUNCTION_WORDS:
                    noun = self.fold(word)
                    uses[noun] += times
                    ended = following == "" or following in _PHRASE_ENDS
                    whole[noun] += times * (ended and (previous in _PHRASE_STARTS or previous in self.adjectives))
                    of[noun] += times * (following == "of")
        return frozenset(word for word, count in uses.items() if self._is_noun(word, count, whole[word], of[word]))

    def find(self, caption: str) -> list[NounPhrase]:
        """The noun phrases of a caption, in order."""
        return [phrase for clause in split_clauses(caption) for phrase in self._parse(clause)]

    def _is_noun(self, word: str, uses: int, whole: int, of: int) -> bool:
        if word in self.adjectives or len(word) < 2 or not word.replace("-", "").isalpha():
            return False
        participle = word.endswith("ed") and (word[:-1] in self._vocabulary or word[:-2] in self._vocabulary)
        if participle or of >= RELATIONAL_SHARE * uses:
            return False
        share = GERUND_SHARE if word.endswith("ing") else NOUN_SHARE
        return whole >= max(LEAST_USES, share * uses)

    def _parse(self, clause: Clause) -> list[NounPhrase]:
        phrases: list[NounPhrase] = []
        following = False  # whether the next word is a noun: then this one describes it
        for position in range(len(clause) - 1, -1, -1):
            is_noun = self._is_mention(clause, position)
            if is_noun and not following:
                phrases.append(self._extend(clause, position))
            following = is_noun and self.fold(clause[position]) not in NO_THINGS
        return phrases[::-1]

    def _is_mention(self, clause: Clause, position: int) -> bool:
        """Whether the word is a noun here: not "a dog *swings*", even if there are swings."""
        noun, before = self.fold(clause[position]), clause[position - 1] if position else ""
        if noun not in self.nouns:
            return False
        stems = (noun, noun[:-1] if noun.endswith("e") else noun, noun + noun[-1])
        if not any(f"{stem}ing" in self._vocabulary for stem in stems):
            return True
        if before in _PHRASE_STARTS or before in self.adjectives:
            return True
        is_plural = noun != clause[position]
        if self.fold(before) in self.nouns:
            # "A dirt track", for "a boy run" is no sentence; but "a boy runs" and "boys run" are.
            return not is_plural and self.fold(before) == before
        is_verb = bool(before) and before not in FUNCTION_WORDS and not before.endswith("ly")
        return is_verb and (is_plural or before.endswith("ing"))  # "they ride bikes", "holding hands"

    def _extend(self, clause: Clause, head: int) -> NounPhrase:
        """The phrase that ends at `head`."""
        modifiers: list[str] = []
        first = head
        while first > 0:
            word = clause[first - 1]
            if first >= 2 and modifiers and word == "and" and clause[first - 2] in self.adjectives:
                modifiers[0] = " and ".join(sorted((clause[first - 2], modifiers[0])))  # "black and white" is neither
                first -= 2
                continue
            known = word in self.adjectives or (word in self.nouns and first == head)
            introduced = first == head and first > 1 and clause[first - 2] in DETERMINERS and self.fold(word) == word
            if word in FUNCTION_WORDS or not (known or introduced):
                break
            modifiers.insert(0, word)
            first -= 1
        # "A light brown dog" is no light dog.
        seen = [
            w for n, w in enumerate(modifiers, 1) if w not in QUANTIFIERS and (w not in SHADES or n == len(modifiers))
        ]
        noun, ends = self.fold(clause[head]), head + 1 == len(clause) or clause[head + 1] in FUNCTION_WORDS
        is_counted = noun != clause[head] or (ends and first > 0 and clause[first - 1] in INDEFINITE)
        if seen and f"{seen[-1]} {noun}" in IDIOMS:
            noun = f"{seen.pop()} {noun}"
        return NounPhrase(noun, tuple(seen), is_counted)

    def fold(self, word: str) -> str:
        """A word in the singular, where captions use that too."""
        if word not in self._folded:
            self._folded[word] = self._find_singular(word)
        return self._folded[word]

    def _find_singular(self, word: str) -> str:
        if word in IRREGULAR:
            return IRREGULAR[word]
        if word.endswith("women") or (word.endswith("men") and f"{word[:-2]}an" in self._vocabulary):
            return f"{word[:-2]}an"
        if not word.endswith("s") or word.endswith(("ss", "us", "is")) or word in PLURAL_ONLY or len(word) < 4:
            return word
        forms = [f"{word[:-3]}y"] if word.endswith("ies") else []
        forms += [word[:-2]] if re.search(r"(s|x|z|ch|sh|o)es$", word) else []
        return next((form for form in (*forms, word[:-1]) if form in self._vocabulary), word)


def split_clauses(caption: str) -> Iterator[tuple[str, ...]]:
    """The words of a caption in lower case, cut at punctuation.

    Example:
        >>> list(split_clauses("A man's dog, wet."))
        [('a', 'man', 'dog'), ('wet',)]
    """
    for part in re.split(r"[^\w'’\- ]+|_", caption.lower()):
        words = (re.sub(r"['’]s?$", "", word).strip("'’-") for word in part.split())
        if clause := tuple(word for word in words if word):
            yield clause


def _neighbours(clause: Clause) -> Iterator[tuple[str, str, str]]:
    """Every word between the one before and the one after, "" where there is none."""
    yield from zip(("", *clause), clause, (*clause[1:], ""), strict=False)
