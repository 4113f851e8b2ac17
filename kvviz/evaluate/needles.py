"""The lighthouse ledger: texts of any length that hide one sentence, and the verdict on an answer.

Pure text: no torch, no model. A tokenizer is needed only to count, through
`tokenizer.encode(text, add_special_tokens=False)`.

A text is prose with slots. One pass over a prose gives about 1,000 tokens in the order it was
written; longer texts take further passes in shuffled order. Every slot is drawn anew from the
seed, so no sentence occurs twice. Dates run forward, all other numbers are distractors.
The text around the needle is the same at every depth: two depths differ by the place alone.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from kvviz.errors import InputError
from kvviz.results.verdict import contains_expected

CODE = "58213"
NEEDLE = f"The code of the Marlow lighthouse door is {CODE}."
QUESTION = "What is the code of the Marlow lighthouse door?"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
MIN_TOKENS = 100  # below this the needle is a large part of the text, and depth means little
TOLERANCE = 0.02  # allowed difference from the wanted length, as a share of it

# Prose with slots: {date} the next date, {n:10-99} a number, {other} a word from _WORDS[other].
_KEEPER = """
This ledger of the Marlow lighthouse was opened on {date} and ruled for {n:180-420} pages in brown
ink. {name} kept the first watch and burned {n:11-29} litres of oil before the light was put out at
{n:4-7} in the morning. The brig {boat} passed at {n:13-28} minutes after midnight, {n:2-9} miles
off {place}, with her topsails reefed. On {date} the glass stood at {n:738-779} millimetres and the
wind blew {wind} for {n:5-19} hours. The cart brought {n:12-64} sacks of {goods}, each weighing
{n:18-52} kilograms, and the carter was paid {n:3-17} shillings. {name} counted {n:112-196} steps
from the cellar to the lamp room and wrote the figure on page {n:12-390}. A cask of {goods} weighed
{n:61-148} kilograms when full and {n:9-38} when it was sent back. On {date} the fog came in so
thick that the bell was struck {n:240-960} times in one night. The old clockwork ran {n:2-14}
minutes slow, and its spring was replaced with one marked {n:1102-9874}. {name} caught {n:3-41}
mackerel from the rocks and salted {n:2-19} of them for the winter. The inspector arrived on {date}
in the cutter {boat} and stayed for {n:2-9} nights. He measured the {part} and found it {n:41-297}
centimetres wide, which is {n:2-11} less than the plan says. Four panes on the {side} side were
cracked by {wind} gusts, and {n:5-23} pounds of putty were ordered from {place}. The tide of {date}
reached {n:3-8} metres and carried off {n:7-58} planks of the landing stage. {name} painted the
{part} with {n:4-27} tins of white lead in {n:2-9} days. A letter of {n:2-15} pages went to the
harbour office under number {n:1014-9786}. The schooner {boat} lay aground near {place} for {n:4-31}
hours, and {n:3-22} men were fed in the kitchen. Their cargo was {n:40-380} barrels of {goods}, of
which {n:3-29} were lost to the sea. On {date} the hens laid {n:2-13} eggs, and the goat was sold
for {n:11-38} shillings. The wick was trimmed {n:3-9} times, and the spare one, number {n:210-988},
was kept dry in the {room}. {name} read the almanac for {n:1861-1870} and found the sunset wrong by
{n:2-12} minutes. The cistern held {n:410-2950} litres on {date}, enough for {n:21-88} days. A whale
of about {n:7-21} metres was seen on {date}, {n:2-6} miles from the tower. The coal bill came to
{n:14-97} pounds for {n:31-240} baskets, and it was filed behind page {n:20-380}. On {date} the boy
of {name} turned {n:6-17} and was allowed to wind the clockwork. The stove in the {room} burned
{n:5-26} logs a day while the {wind} wind lasted. {name} greased the {n:8-36} rollers under the lens
and noted {n:110-840} turns in an hour. A survey boat took {n:14-77} soundings off {place}, the
deepest of {n:31-142} metres. The postman rowed out on {date} with {n:3-18} letters and a parcel of
{n:2-9} kilograms. Rent for the {room} was put at {n:5-33} shillings for each of the {n:3-12}
months. The barque {boat} signalled for a doctor at {n:2-11} in the evening and was answered after
{n:6-48} minutes. {name} mended {n:4-37} metres of net and used {n:120-870} knots of tarred line. By
{date} the stock of {goods} had fallen to {n:6-59} kilograms, and {n:2-9} boxes were added to the
order. The rain gauge on the {side} wall showed {n:4-68} millimetres in {n:7-29} hours. Two masons
charged {n:13-79} shillings to point {n:15-95} courses of stone above the {room}. A ring of {n:5-23}
keys hung in the {room}, and the heaviest weighed {n:110-480} grams. {name} took the boat to {place}
on {date} and was back after {n:3-11} hours with {n:4-26} loaves. The log line of the {boat} ran out
{n:70-410} fathoms before it parted. On {date} two pilots played {n:6-31} rounds of draughts for
{n:2-15} pennies each. The paper for the next year was ordered in sheets of {n:24-61} by {n:18-45}
centimetres, {n:200-990} in all. A gannet with a ring numbered {n:2011-9870} flew against the {side}
panes and was let go after {n:2-9} days. {name} closed the account of the quarter at {n:31-290}
shillings and signed below line {n:11-48}.
"""

_MUSEUM = """
The reading room of the coast museum received the Marlow papers on {date} in {n:11-48} grey boxes.
Box {n:3-95} holds the drawings of the {part}, {n:14-88} sheets in all, none larger than {n:41-118}
centimetres. Catalogue entry {n:1021-9893} describes a brass lantern of {n:3-26} kilograms, given by
{name}. A photograph dated {date} shows {n:5-34} visitors on the gallery in heavy coats. The brass
plate from the {boat} was found in {n:1902-1950} by divers at a depth of {n:12-61} metres. {name}
copied {n:24-210} pages of the pilot book and marked {n:3-19} of them with red thread. The {goods}
account for {n:1840-1899} fills {n:17-96} leaves and ends with a debt of {n:12-99} pounds. On {date}
a school class of {n:14-37} children counted the rings on the {part} and reached {n:41-199}. The
model of the tower stands {n:61-184} centimetres high and was built at a scale of 1 to {n:20-90}.
Shelf {n:2-58} carries the tide tables, bound in {n:6-29} volumes and stained by salt. A map of
{place} was repaired on {date} with {n:2-17} strips of thin paper. {name} bought the ship's bell at
auction, lot {n:110-985}, for {n:120-960} crowns. The visitors' book names {n:204-1990} guests, and
the first of them came from {place}. Letter {n:12-340} tells how the {boat} lost {n:2-14} anchors in
a single {wind} storm. The film reel runs for {n:4-23} minutes and was stored at {n:7-18} degrees
until {date}. {name} numbered the {goods} labels from {n:101-480} upwards and missed {n:2-9} of
them. The oak chest measures {n:71-168} by {n:38-69} centimetres and came from the {room}. An uncle
of {name} wrote {n:31-220} verses about the {side} reef, printed in {n:80-700} copies. The insurance
paper of {date} values the lens at {n:1200-9700} crowns. Visitors may not lean on the {part}, which
carries at most {n:90-480} kilograms. The diary skips {n:3-27} days in the spring and resumes on
{date} with a drawing of a gull. Glass negative {n:1003-9960} broke in {n:1911-1949}, and its
{n:3-13} pieces lie in an envelope. The {room} was heated with {n:9-68} baskets of coal a month,
says the bill from {place}. {name} recorded {n:13-92} voices for the sound archive on tapes of
{n:30-90} minutes. A coin of {n:1788-1869} was found under the floor of the {room}, {n:11-47}
millimetres across. The newspaper of {date} gives page {n:2-24} to the rescue of the {boat}. Its
reporter speaks of {n:7-43} sailors, {n:2-9} dogs and {n:110-760} crates of {goods}. The {side}
window was measured {n:3-12} times, and the mean was {n:81-176} centimetres. Folder {n:210-940}
keeps the wage lists, where {name} appears {n:5-61} times. On {date} the humidity rose to {n:61-88}
percent, and {n:4-39} volumes were moved upstairs. The catalogue counts {n:320-2900} objects made of
iron and {n:21-190} made of bone. A pair of boots, size {n:38-47}, belonged to the cook of the
{boat}, who served {n:3-29} years. {name} paid {n:14-89} crowns for the frame and {n:3-13} more for
the hook. The lecture of {date} drew {n:23-240} listeners and ended after {n:41-118} minutes. The
lamp once used {n:140-930} grams of oil an hour, as the table on page {n:9-310} states. The last
box, weighing {n:6-31} kilograms, was sealed under number {n:1030-9790} and left in the {room}. A
barometer by a maker of {place} still shows {n:741-778} millimetres, though its needle stuck in
{n:1890-1944}. On {date} a visitor from the {side} coast returned {n:2-19} pages that had been
missing for {n:7-36} years. {name} dated the {goods} receipt by its stamp of {n:3-16} pence and put
it in tray {n:14-97}. The guard of the night opened the register at line {n:101-890} and noted
{n:2-12} rounds. A painting of the {boat} was cleaned with {n:4-27} swabs and varnished on {date}.
The index of names runs to {n:1100-8900} cards in {n:13-88} drawers of pine. {name} read the closing
report in {n:14-58} minutes and asked for {n:2-9} corrections.
"""

_REPAIR = """
Work at the Marlow site began on {date} with {n:5-19} people and a barge hired for {n:9-60} weeks.
The first load was {n:11-74} tonnes of {goods}, landed at {place} before noon. {name} signed for
{n:24-190} scaffold poles and sent {n:2-13} of them back as bent. On {date} the crew lifted the
{part} with a crane rated at {n:3-18} tonnes. The survey lists {n:31-280} cracks, and the longest of
them measures {n:61-490} centimetres. The supply boat {boat} made {n:2-8} trips and burned
{n:110-890} litres of fuel. Wind from the {side} side stopped the painters for {n:2-14} days, as
page {n:4-96} of the site book shows. {name} tested {n:6-48} cubes of mortar, and the weakest broke
at {n:11-39} kilonewtons. A pallet of {goods} weighed {n:210-980} kilograms and carried the tag
{n:1007-9942}. On {date} the generator had run {n:310-2900} hours and was given {n:4-17} litres of
oil. The {room} was cleared of {n:13-120} barrows of rubble in {n:2-9} shifts. {name} drilled
{n:12-88} holes into the {part}, each {n:14-62} millimetres deep. The invoice of {date} asks for
{n:1100-9800} euros, payable within {n:14-60} days. Divers checked {n:8-46} piles below the jetty
and replaced {n:2-7} of them. The ferry {boat} brought {n:12-66} visitors who had to wait behind the
{side} fence. {name} rolled out {n:120-870} metres of cable and fixed it with {n:210-960} clips. On
{date} the tide gauge read {n:2-7} metres at {n:2-11} in the afternoon. The old slates were counted,
{n:640-4900} in number, and {n:31-240} were fit for use. A storm with {wind} squalls tore {n:4-38}
sheets from the roof of the {room}. {name} wrote to {place} for {n:15-95} bags of lime at {n:6-29}
euros a bag. The lightning rod was earthed on {date} with a strip of {n:21-78} metres. Sample
{n:102-989} contained {n:2-23} percent salt and went to a laboratory at {place}. The stair of the
{room} has {n:14-58} treads, of which {n:2-9} were cut anew. On {date} the drone of {name} took
{n:140-990} pictures from a height of {n:31-118} metres. The barge {boat} sank {n:9-44} centimetres
deeper under {n:8-62} tonnes of {goods}. Paint for the {part} came in {n:11-77} cans of {n:5-20}
litres, all from batch {n:1010-9870}. The safety officer noted {n:3-17} helmets and {n:2-12} missing
gloves on {date}. {name} spent {n:4-29} hours on the {side} parapet and reset {n:13-90} stones. The
budget sheet moved {n:1200-9600} euros from {goods} to wages on page {n:3-88}. Seals gathered near
{place}, at most {n:11-140} on one morning, and work paused for {n:2-6} hours. The new pump lifts
{n:90-780} litres a minute and weighs {n:21-95} kilograms. On {date} the {boat} delivered {n:6-54}
windows, each {n:61-148} centimetres tall. {name} marked the {part} at {n:7-39} points and found it
leaning by {n:3-28} millimetres. The canteen served {n:120-940} meals that month and used {n:14-88}
kilograms of potatoes. Rainwater filled the {room} to {n:4-31} centimetres after {n:5-21} hours of
{wind} weather. The final list of {date} names {n:3-27} small defects, to be settled within
{n:20-90} days. A plank of {n:2-6} metres from {place} was kept to show {n:3-14} layers of old
paint. {name} changed the filter after {n:210-980} hours and wrote the reading {n:1015-9790} beside
it. The {side} gutter carries {n:12-140} litres a minute since {date}. Radio contact with the {boat}
was lost for {n:8-55} minutes near {place}. The last pallet held {n:64-480} tiles, of which {n:3-26}
arrived broken. {name} locked the tool crate at {n:4-9} in the evening with {n:11-73} chisels
inside.
"""

_TEXTS = (_KEEPER, _MUSEUM, _REPAIR)
_STARTS = (date(1871, 3, 4), date(1953, 9, 12), date(2011, 4, 18))
N_TEXTS = len(_TEXTS)

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WORDS = {
    "name": (
        "Ansel Brack",
        "Tilda Voss",
        "Joram Pell",
        "Edith Carrow",
        "Old Hennick",
        "Mabel Storr",
        "Corin Leith",
        "Widow Tamsett",
        "Silas Orme",
        "Nora Quill",
    ),
    "boat": (
        "Grey Petrel",
        "Hope of Aldby",
        "Margareta",
        "Two Sisters",
        "Northern Wren",
        "Patience",
        "Silver Tern",
        "Good Intent",
    ),
    "place": (
        "Scarth Bank",
        "Kettle Shoal",
        "the south mole",
        "Aldby Quay",
        "the Hollow Sands",
        "Gannet Rock",
        "the long pier",
        "the ferry steps",
    ),
    "goods": ("salt", "lime", "flour", "rope", "lamp oil", "tar", "barley", "sailcloth", "copper"),
    "wind": ("north-easterly", "south-westerly", "westerly", "easterly", "northerly"),
    "side": ("north", "south", "east", "west", "seaward", "landward"),
    "part": (
        "gallery rail",
        "lens frame",
        "iron stair",
        "fog bell",
        "weather vane",
        "lamp dome",
        "boat winch",
    ),
    "room": (
        "oil store",
        "watch room",
        "kitchen",
        "signal hut",
        "boat shed",
        "upper cellar",
        "workshop",
    ),
}
_SLOT = re.compile(r"\{(\w+)(?::(\d+)-(\d+))?\}")


@dataclass(frozen=True)
class NeedleCase:
    """One text with a hidden sentence and the question about it.

    depth   the asked place of the needle, 0 = start, 1 = end, as a share of the surrounding tokens.
    tokens  length of `document` in tokens of the counting tokenizer, without special tokens.
    """

    document: str
    question: str
    expected: str
    needle_sentence: str
    depth: float
    text: int = 0
    seed: int = 0
    tokens: int = 0

    @property
    def needle_span(self) -> tuple[int, int]:
        """(start, end) characters of the needle sentence in `document`."""
        start = self.document.index(self.needle_sentence)
        return start, start + len(self.needle_sentence)

    @property
    def expected_span(self) -> tuple[int, int]:
        """(start, end) characters of the expected answer in `document`."""
        start = self.needle_span[0] + self.needle_sentence.index(self.expected)
        return start, start + len(self.expected)


def needle_text(
    length_tokens: int, depth: float, tokenizer: Any, text: int = 0, seed: int = 0
) -> NeedleCase:
    """Build text number `text` of about `length_tokens` tokens with the needle near `depth`.

    The length counts the document with its needle, without question or chat template, and is met
    within 2%. The same arguments give the same text.
    """
    return needle_cases(length_tokens, (depth,), tokenizer, (text,), seed)[0]


def needle_cases(
    length_tokens: int,
    depths: Sequence[float] = DEPTHS,
    tokenizer: Any = None,
    texts: Sequence[int] = tuple(range(N_TEXTS)),
    seed: int = 0,
) -> list[NeedleCase]:
    """Every text at every depth, texts outermost; at one text and seed only the place differs."""
    if tokenizer is None:
        raise InputError("Needle texts are counted in tokens: hand over the model's tokenizer.")
    if length_tokens < MIN_TOKENS:
        raise InputError(f"A needle text needs {MIN_TOKENS} tokens or more, not {length_tokens}.")
    for depth in depths:
        if not 0 <= depth <= 1:  # also refuses NaN
            raise InputError(f"A needle depth lies between 0 (start) and 1 (end), not {depth}.")
    for text in texts:
        if text not in range(N_TEXTS):
            raise InputError(f"There are {N_TEXTS} needle texts, 0 to {N_TEXTS - 1}, not {text}.")
    cases = []
    for text in texts:
        sentences, counts, breaks = _surroundings(length_tokens, tokenizer, text, seed)
        for depth in depths:
            document = _insert(sentences, breaks, _boundary(counts, depth))
            tokens = _count(tokenizer, document)
            if abs(tokens - length_tokens) > TOLERANCE * length_tokens:
                raise InputError(
                    f"The needle text came to {tokens} tokens instead of {length_tokens}: "
                    "this tokenizer counts sentences differently alone and in a text."
                )
            cases.append(NeedleCase(document, QUESTION, CODE, NEEDLE, depth, text, seed, tokens))
    return cases


def _surroundings(
    length_tokens: int, tokenizer: Any, text: int, seed: int
) -> tuple[list[str], list[int], set[int]]:
    """Sentences around the needle, their token counts, and which of them open a paragraph."""
    rng = random.Random(f"{text}/{seed}")
    source = _sentences(text, rng)
    space = length_tokens - _count(tokenizer, " " + NEEDLE)
    sentences: list[str] = []
    counts: list[int] = []
    breaks = {0}
    paragraph_end = rng.randint(4, 6)
    while True:
        sentence = next(source)
        opens = len(sentences) == paragraph_end
        # Counted with what joins it to the text: a paragraph break may be a token of its own.
        count = _count(tokenizer, ("\n\n" if opens else " ") + sentence)
        if count > space:
            break
        if opens:
            breaks.add(len(sentences))
            paragraph_end += rng.randint(4, 6)
        sentences.append(sentence)
        counts.append(count)
        space -= count
    # The gap left is shorter than a sentence. Taking two back and closing with the best few of
    # these and the sentences after them meets the length almost exactly, whatever the tokenizer.
    spare = [(sentence, _count(tokenizer, " " + sentence))]
    for _ in range(min(2, len(sentences) - 1)):
        spare.insert(0, (sentences.pop(), counts.pop()))
        space += spare[0][1]
    spare += [(s, _count(tokenizer, " " + s)) for s in itertools.islice(source, 10)]
    for sentence, count in _closest(spare, space, slack=min(5, length_tokens // 500)):
        sentences.append(sentence)
        counts.append(count)
    breaks.difference_update(range(max(len(sentences) - 1, 1), max(breaks) + 1))
    return sentences, counts, breaks


def _closest(spare: list[tuple[str, int]], space: int, slack: int) -> list[tuple[str, int]]:
    """The sentences (four at most, order kept) whose tokens together come closest to `space`.

    Fewer and earlier ones win among those that miss it by `slack` tokens or less.
    """
    choices = (c for size in range(5) for c in itertools.combinations(spare, size))

    def miss(chosen: tuple[tuple[str, int], ...]) -> int:
        return max(slack, abs(space - sum(count for _, count in chosen)))

    return list(min(choices, key=miss))


def _sentences(text: int, rng: random.Random) -> Iterator[str]:
    """Sentences without end: first in the order written, then pass after pass in shuffled order."""
    templates = re.split(r"(?<=\.)\s+", _TEXTS[text].strip())
    today = _STARTS[text]
    seen: set[str] = set()
    order = list(range(len(templates)))
    while True:
        for number in order:
            for _ in range(50):  # a sentence with few slots may run out: then it is passed over
                sentence, day = _fill(" ".join(templates[number].split()), rng, today)
                if sentence not in seen and not contains_expected(sentence, CODE):
                    today = day
                    seen.add(sentence)
                    yield sentence
                    break
        # The second half of a pass never opens the next one: a sentence stays away from its twin.
        # Sentence 0 opens the text and is said once.
        rest = [number for number in order if number]
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        rng.shuffle(first)
        rng.shuffle(second)
        order = first + second


def _fill(template: str, rng: random.Random, today: date) -> tuple[str, date]:
    """Draw every slot of one sentence. Returns it and the last date used."""
    day = today

    def draw(match: re.Match[str]) -> str:
        nonlocal day
        slot, low, high = match.groups()
        if low:
            return str(rng.randint(int(low), int(high)))
        if slot == "date":
            day += timedelta(days=rng.randint(1, 9))
            return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"
        return rng.choice(_WORDS[slot])

    return _SLOT.sub(draw, template), day


def _boundary(counts: Sequence[int], depth: float) -> int:
    """How many sentences stand before the needle so that their tokens come closest to `depth`."""
    wanted = depth * sum(counts)
    best, passed, best_miss = 0, 0, wanted
    for number, count in enumerate(counts, start=1):
        passed += count
        if abs(passed - wanted) < best_miss:
            best, best_miss = number, abs(passed - wanted)
    return best


def _insert(sentences: Sequence[str], breaks: set[int], place: int) -> str:
    """The document with the needle before sentence `place`, in the paragraph of its predecessor."""
    pieces = [*sentences[:place], NEEDLE, *sentences[place:]]
    opening = {at if at < place or at == 0 else at + 1 for at in breaks}
    joints = ("\n\n" if at in opening else " " for at in range(1, len(pieces)))
    return pieces[0] + "".join(
        joint + piece for joint, piece in zip(joints, pieces[1:], strict=True)
    )


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))
