"""Short stories for the demo corpus: a seeded grammar with heroes, places, wishes, troubles and endings.

A story is drawn from a plot (a list of beats); each beat has several wordings, and the slots are filled once per story
so that names, places and things stay the same from the first sentence to the last.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from training.corpus.plots import DAYS, ENDINGS, OPENINGS, PLOTS


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a line, one by one."""
    return tuple(text.split())


def phrases_of(text: str) -> tuple[str, ...]:
    """Return the phrases between the commas of a line."""
    return tuple(text.split(","))


GIRLS = words_of("Anna Mia Lena Sara Emma Nora Ida Lucy Clara Ella Rosa Maya Zoe Alma Ruth Jane Lily Tess Nina Vera")
BOYS = words_of("Tom Ben Max Leo Paul Finn Sam Jack Noah Otto Emil Hugo Adam Karl Luke Tim Oscar Felix Milo Jonas")
PET_NAMES = words_of("Pip Bobo Fluff Rusty Momo Dot Coco Biscuit Tiny Patch Pepper Hazel Bruno Sunny Olive Nutmeg")

ANIMALS = words_of(
    "dog cat mouse rabbit fox bear owl hedgehog squirrel duck frog horse lion elephant turtle penguin goat sheep "
    "tiger monkey wolf bird cow pig donkey fish whale bee spider snail"
)
BEINGS = words_of("robot dragon ghost monster giant fairy")
PEOPLE = {
    "girl": "she",
    "boy": "he",
    "princess": "she",
    "prince": "he",
    "queen": "she",
    "king": "he",
    "farmer": "he",
    "baker": "she",
    "teacher": "she",
    "sailor": "he",
    "pirate": "he",
    "wizard": "he",
    "witch": "she",
    "knight": "he",
    "doctor": "she",
    "painter": "she",
}
HEROES = (*ANIMALS, *BEINGS, *PEOPLE)
ADJECTIVES = words_of(
    "brave little kind shy clever curious lonely happy gentle tired young old funny quiet hungry lazy"
)
PLACES = words_of(
    "forest village garden castle park valley farm meadow city school market harbor library mountain island desert"
)
THINGS = phrases_of(
    "red ball,golden key,blue hat,small boat,silver bell,wooden box,warm scarf,old map,green kite,shiny stone,"
    "music box,round drum,paper lantern,glass star,big book,yellow umbrella"
)
FOODS = phrases_of("apple pie,honey cake,warm soup,fresh bread,berry jam,chocolate cake,plum pudding,cheese")

_HOME = {"island": "on", "farm": "on", "mountain": "on", "market": "near", "harbor": "near", "library": "near"}
SKILLS = phrases_of("swim,sing,dance,read,ride a bike,play the flute,skate,paint,climb,whistle")

_PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}


@dataclass(frozen=True)
class Story:
    """One story with what a prompt may ask for: the hero (kind), an adjective, the hero's name and the place."""

    text: str
    hero: str
    adjective: str
    name: str
    place: str
    friend: str


def article(noun_phrase: str) -> str:
    """Return the phrase with "a" or "an" in front."""
    return ("an " if noun_phrase[0] in "aeiou" else "a ") + noun_phrase


def _names_for(kind: str) -> tuple[str, ...]:
    """Return the names a hero of this kind may carry, so that a queen is not called Otto."""
    return {"she": GIRLS, "he": BOYS}[PEOPLE[kind]] if kind in PEOPLE else PET_NAMES


def draw_story(rng: random.Random) -> Story:
    """Draw one story: an opening, the six beats of a plot and an ending, 60 to 110 words in all."""
    hero, friend = rng.sample(HEROES, 2)
    adjective, place, thing = rng.choice(ADJECTIVES), rng.choice(PLACES), rng.choice(THINGS)
    pronoun = PEOPLE.get(hero) or rng.choice(("he", "she"))
    name = rng.choice(_names_for(hero))
    friend_name = rng.choice([each for each in _names_for(friend) if each != name])
    he, him, his = _PRONOUNS[pronoun]
    home = rng.choice(("small", "big", "green", "far away"))
    slots = {
        "N": name,
        "F": friend_name,
        "friend": friend,
        "a_friend": article(friend),
        "A_friend": article(friend).capitalize(),
        "a_adj_hero": article(f"{adjective} {hero}"),
        "place": place,
        "in_place": f"{_HOME.get(place, 'in')} {article(f'{home} {place}')}",
        "thing": thing,
        "a_thing": article(thing),
        "short": thing.split()[-1],
        "food": rng.choice(FOODS),
        "skill": rng.choice(SKILLS),
        "day": rng.choice(DAYS),
        "he": he,
        "him": him,
        "his": his,
        "He": he.capitalize(),
        "His": his.capitalize(),
    }
    plot = PLOTS[rng.choice(tuple(PLOTS))]
    beats = [rng.choice(OPENINGS), *(rng.choice(beat) for beat in plot), rng.choice(ENDINGS)]
    return Story(" ".join(beats).format(**slots), hero, adjective, name, place, friend)


STORY_REQUESTS: tuple[str, ...] = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Write a short story for children.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Tell me a story, please.",
    "Please write a short story.",
)
HERO_REQUESTS: tuple[str, ...] = (
    "Tell me a story about {hero}.",
    "Tell me a short story about {hero}.",
    "Write a story about {hero}.",
    "Write a short story about {hero}.",
    "Can you tell me a story about {hero}?",
    "I want to hear a story about {hero}.",
    "A story about {hero}, please.",
    "Please tell me a story about {hero}.",
)


def draw_request(rng: random.Random, story: Story) -> str:
    """Return a request this story answers: open, or naming its hero, name, friend or place."""
    if rng.random() < 0.25:
        return rng.choice(STORY_REQUESTS)
    hero = article(f"{story.adjective} {story.hero}" if rng.random() < 0.4 else story.hero)
    extra = rng.random()
    if extra < 0.15:
        hero += f" named {story.name}"
    elif extra < 0.3:
        hero += f" and {article(story.friend)}"
    elif extra < 0.4:
        hero += f" {_HOME.get(story.place, 'in')} {article(story.place)}"
    elif extra < 0.45:
        hero = story.name
    return rng.choice(HERO_REQUESTS).format(hero=hero)
