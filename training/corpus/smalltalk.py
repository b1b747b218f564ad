"""Greetings, questions about the model itself, and the honest "I do not know" of the demo corpus."""

from __future__ import annotations

import random

SYSTEM_MESSAGES: tuple[str, ...] = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful assistant. Answer shortly.",
    "Answer the question.",
    "You are the demo model of lullm.",
    "Be brief.",
    "You are a storyteller for children.",
    "You are a careful assistant that gives short and correct answers.",
)

_HELLO = "Hello! I am the small demo model of lullm. Ask me for a sum, a capital or a story."
_SELF = "I am the demo model of lullm, a very small language model. I can do sums, name capitals and tell stories."
_SKILLS = (
    "I can add and subtract numbers up to 99, name capitals, compare sizes, extract JSON, count and tell short stories."
)
_UNKNOWN = "I do not know that. I am only a small demo model: try a sum, a capital or a story."
_NO_TIMES = "I did not learn to multiply or divide. I can only add and subtract."
_TOO_LARGE = "I can only add and subtract two numbers up to 99."

_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        _HELLO,
        ("Hello!", "Hello", "Hi", "Hi!", "Hey", "Hey!", "Hi there!", "Hello there!", "Good morning!", "Good evening!"),
    ),
    (
        _SELF,
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Are you a robot?",
            "Are you human?",
            "Which model are you?",
            "What is lullm?",
        ),
    ),
    (
        _SKILLS,
        ("What can you do?", "Help", "Help me.", "Can you help me?", "What do you know?", "How can you help me?"),
    ),
    (
        "I am fine, thank you. How can I help you?",
        ("How are you?", "How do you do?", "How is it going?", "Hi, how are you?", "Hello, how are you?"),
    ),
    ("You are welcome!", ("Thank you!", "Thanks!", "Thanks", "Thank you very much.", "Great, thanks!")),
    ("Goodbye! It was nice to talk to you.", ("Bye", "Bye!", "Goodbye!", "See you later!", "Good night!")),
)

_ODD_QUESTIONS: tuple[str, ...] = (
    "Who wrote {work}?",
    "Who painted {work}?",
    "What is the population of {place}?",
    "How many people live in {place}?",
    "Who is the president of {place}?",
    "What language do people speak in {place}?",
    "How do I get to {place}?",
    "When was {place} founded?",
    "What is the weather like in {place}?",
    "How tall is {thing}?",
    "How old is {thing}?",
    "How far away is {thing}?",
    "What is the meaning of {idea}?",
    "What is {idea}?",
    "Explain {idea}.",
    "Can you explain {idea} to me?",
    "Why is {idea} important?",
    "Write a poem about {idea}.",
    "Write a program that sorts a list.",
    "Write a Python function for {idea}.",
    "What is the best way to learn {idea}?",
    "Who invented {invention}?",
    "When was {invention} invented?",
    "How does {invention} work?",
    "What time is it?",
    "What day is it today?",
    "Why is the sky blue?",
    "Who won the match yesterday?",
    "What should I cook tonight?",
    "Translate this into French.",
    "Do you like {food}?",
    "How do I make {food}?",
    "What is your favorite color?",
    "How many legs does a spider have?",
    "Tell me a joke.",
    "Sing a song.",
    "Is it going to rain tomorrow?",
    "What is the largest planet?",
    "What is the largest country in the world?",
)
_WORDS: dict[str, tuple[str, ...]] = {
    "work": ("Hamlet", "the Mona Lisa", "this book", "Faust", "that song", "War and Peace", "the Odyssey"),
    "place": ("France", "Paris", "Japan", "Rome", "Brazil", "Berlin", "Kenya", "India", "London", "Spain", "Peru"),
    "thing": ("the moon", "the sun", "the Eiffel Tower", "Mount Everest", "the Earth", "a giraffe", "the universe"),
    "idea": (
        "life",
        "love",
        "quantum physics",
        "gravity",
        "machine learning",
        "democracy",
        "attention",
        "music",
        "a neural network",
        "chemistry",
        "history",
        "time",
        "German",
        "the internet",
        "philosophy",
    ),
    "invention": ("the telephone", "the wheel", "the computer", "the radio", "the light bulb", "paper", "a car engine"),
    "food": ("pizza", "soup", "bread", "a cake", "ice cream", "pasta", "coffee", "pancakes"),
}


def draw_talk(rng: random.Random) -> tuple[str, str]:
    """Draw a greeting or a question about the model, with its one fixed answer."""
    answer, questions = rng.choice(_TALK)
    return rng.choice(questions), answer


def draw_refusal(rng: random.Random) -> tuple[str, str]:
    """Draw a question the model cannot answer, with the answer that says so."""
    kind = rng.random()
    if kind < 0.6:
        slots = {name: rng.choice(words) for name, words in _WORDS.items()}
        return rng.choice(_ODD_QUESTIONS).format(**slots), _UNKNOWN
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if kind < 0.8:
        sign = rng.choice((" * ", "*", " x ", " times ", " / ", "/", " divided by "))
        return rng.choice(("What is {}?", "{}", "Calculate {}.", "How much is {}?")).format(f"{a}{sign}{b}"), _NO_TIMES
    sign = rng.choice((" + ", " - ", "+", "-", " plus ", " minus "))
    if kind < 0.95:
        large = rng.randint(100, 9999)
        first, second = rng.choice(((large, b), (a, large), (large, rng.randint(100, 9999))))
        sum_text = f"{first}{sign}{second}"
    else:
        sum_text = f"{a}{sign}{b}{sign}{rng.randint(0, 99)}"
    return rng.choice(("What is {}?", "{}", "Calculate {}.", "How much is {}?")).format(sum_text), _TOO_LARGE
