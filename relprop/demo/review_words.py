"""What the grammar of ``reviews`` is made of: words, phrases and sentence frames. ``*`` stands
behind every word that decides what a claim says.

Slots of a frame: ``{subject}`` what is spoken of, ``{lead}`` a negation or what stands in its
place, ``{intensifier}``, ``{word}`` the sentiment word.
"""

from __future__ import annotations

#: Sentiment words, positive ones first, as many of each polarity.
WORDS = {
    "adjective": (
        *(
            "wonderful brilliant charming moving funny clever gripping delightful superb "
            "enchanting splendid touching witty fresh thrilling lovely"
        ).split(),
        *(
            "boring awful dull clumsy tedious stupid weak dreadful tiresome shallow "
            "lifeless silly stale pompous bland dreary"
        ).split(),
    ),
    "noun": (
        *"delight triumph joy gem treat masterpiece".split(),
        *"bore mess chore failure disaster letdown".split(),
    ),
    "verb": (
        *"move charm thrill amuse delight enchant".split(),
        *"bore annoy tire irritate disappoint depress".split(),
    ),
}
NEGATIONS = {
    "adjective": ("not*", "hardly*", "never*", "far* from*", "anything* but*", "by* no* means*"),
    "noun": ("not*", "hardly*", "far* from*", "anything* but*", "by* no* means*"),
    "verb": ("did not*", "failed* to", "did nothing* to", "never* managed to"),
}
PLAIN = {
    "adjective": ("",),
    "noun": ("",),
    "verb": ("did", "managed to", "did everything to", "was able to"),
}
INTENSIFIERS = ("very", "utterly", "truly", "really", "quite", "so")

FRAMES = {
    "adjective": (
        "{subject} is {lead} {intensifier} {word}",
        "{subject} was {lead} {intensifier} {word}",
        "i found {subject} {lead} {intensifier} {word}",
        "{subject} seemed {lead} {intensifier} {word} to me",
        "to my mind {subject} is {lead} {intensifier} {word} from start to finish",
    ),
    "noun": (
        "{subject} is {lead} a {word}",
        "{subject} was {lead} a {word}",
        "i would call {subject} {lead} a {word}",
    ),
    "verb": (
        "{subject} {lead} {word} me",
        "in the end {subject} {lead} {word} me",
        "{subject} {lead} {word} us all",
    ),
}
OTHER_FRAMES = {
    "adjective": (
        "{subject} was {lead} {intensifier} {word}",
        "i found {subject} {lead} {intensifier} {word}",
        "{subject} came out last year and i found it {lead} {intensifier} {word}",
        "of {subject} i remember that it was {lead} {intensifier} {word}",
        "it was {lead} {intensifier} {word} , {subject} , but that is another story",
        "the script is {lead} {intensifier} {word} in {subject}",
    ),
    "noun": (
        "{subject} was {lead} a {word}",
        "people called {subject} {lead} a {word}",
        "it was {lead} a {word} , {subject} , as i recall",
    ),
    "verb": (
        "{subject} {lead} {word} me",
        "when i saw {subject} it {lead} {word} me",
        "it {lead} {word} us all , {subject}",
    ),
}
CONTRASTS = (
    "whereas {theirs} , {mine}",
    "{mine} , while {theirs}",
    "{theirs} , but {mine}",
    "{mine} ; {theirs}",
)

SUBJECTS = (
    "the film",
    "this film",
    "the movie",
    "this picture",
    "the script",
    "the acting",
    "the ending",
    "the camera work",
    "the music",
    "the whole thing",
    "the dialogue",
)
OTHER_SUBJECTS = (
    "the sequel",
    "the last film of {director}",
    "his earlier film",
    "the remake",
    "the original",
    "the other film that evening",
    "the film we saw before",
    "her previous picture",
    "the last movie with {actor}",
)
NAMES = {
    "director": "Lindqvist Okafor Marchetti Halloran Petrov Yamada".split(),
    "actor": "Rosalind Theodor Imogen Casimir Beatrix Anselm".split(),
    "hero": "Martha Otto Leila Viktor Agnes Pavel".split(),
    "city": "Lisbon Trieste Bergen Odessa Leeds Cadiz".split(),
    "job": "baker clerk sailor nurse teacher painter".split(),
    "day": "Monday Tuesday Friday Sunday".split(),
}
NEUTRAL = (
    "{hero} is a {job} who returns to {city} after the war",
    "{actor} plays a {job} with two brothers",
    "it was not shot in {city}",
    "we saw it on a {day} with my sister",
    "the story is set far from {city}",
    "there is no car in the story",
    "we never learn where {hero} comes from",
    "hardly anyone was in the cinema on {day}",
    "it runs for two hours and ten minutes",
    "the director is {director} and the lead is {actor}",
    "halfway through {hero} leaves the {job} for good",
    "the {job} has nothing to do with {hero}",
    "nobody but {hero} knows the way to {city}",
    "anything by {director} opens on a {day}",
    "the remake was shot in {city}",
    "the sequel is by {director}",
    "his earlier film opens in {city} as well",
    "{hero} failed to catch the train to {city}",
    "the house of the {job} is very old",
    "{actor} did not come to the opening in {city}",
    "it begins and ends in a kitchen in {city}",
    "the other film that evening was by {director}",
    "i know the people of {city} by name",
    "the means of the {job} are small",
)
