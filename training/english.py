"""The small domain of English the bundled model talks about: small talk, facts, advice, stories.

Texts are written in a tiny grammar: `[a|b|c]` chooses one part (nesting allowed), `{slot}` is
filled in. Everything is drawn from a `random.Random`.
"""

# ruff: noqa: E501  (a sentence a line reads better than half a one)

import re
from random import Random

from tables import (
    ANIMALS,
    CAPITALS,
    DISHES,
    PLANETS,
    PLANTS,
    SEASONS,
    STORY,
    STORY_SLOTS,
    TALK,
    TOPICS,
)

Turn = tuple[str, str]
_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(rng: Random, template: str, **slots: str) -> str:
    """A text of the grammar, innermost choices first."""
    while match := _CHOICE.search(template):
        chosen = rng.choice(match[1].split("|"))
        template = template[: match.start()] + chosen + template[match.end() :]
    return template.format(**slots) if slots else template


def english_turns(rng: Random) -> list[Turn]:
    """A conversation of one to four turns, opened by a greeting at times."""
    count = rng.choice((1, 1, 1, 2, 2, 3, 4))
    return [_spoken(rng, _turn(rng)) for _ in range(count)]


def story(rng: Random) -> str:
    """A short story: a hero, a wish, trouble, help, an end."""
    slots = {key: rng.choice(values) for key, values in STORY_SLOTS.items()}
    slots["friend"] = rng.choice([name for name in STORY_SLOTS["hero"] if name != slots["hero"]])
    return " ".join(expand(rng, rng.choice(part), **slots) for part in STORY.values())


def _turn(rng: Random) -> Turn:
    kinds = (
        _talk,
        _talk,
        _animal,
        _plant,
        _planet,
        _capital,
        _dish,
        _season,
        _topic,
        _story,
        _echo,
        _list,
    )
    return rng.choice(kinds)(rng)


def _spoken(rng: Random, turn: Turn) -> Turn:
    """The user does not always write neatly."""
    asked, reply = turn
    if rng.random() < 0.15:
        asked = asked.rstrip("?!.").lower() if rng.random() < 0.5 else asked.rstrip("?!.")
    elif rng.random() < 0.1:
        asked = rng.choice(("Hi! ", "Hello, ", "Please: ", "I have a question. ")) + asked
    return asked, reply


def _talk(rng: Random) -> Turn:
    asks, reply = rng.choice(TALK)
    return expand(rng, asks), expand(rng, reply)


def _animal(rng: Random) -> Turn:
    name = rng.choice(list(ANIMALS))
    home, food, trait = ANIMALS[name]
    forms = (
        (
            "[Tell me about|What do you know about|Say something about] the {name}.",
            "The {name} lives [in|around] {home}. It [likes to eat|mostly eats|eats] {food}. It is known "
            "[for being {trait}|because it is {trait}].",
        ),
        (
            "Where does [the|a] {name} live?",
            "[The {name} lives in {home}.|It lives in {home}.|You can find the {name} in {home}.]",
        ),
        (
            "What does [the|a] {name} eat?",
            "[The {name} eats {food}.|It mostly eats {food}.|It likes {food}.]",
        ),
        ("Is the {name} {trait}?", "Yes, the {name} is {trait}."),
    )
    return _filled(rng, forms, name=name, home=home, food=food, trait=trait)


def _plant(rng: Random) -> Turn:
    name = rng.choice(list(PLANTS))
    light, water, month = PLANTS[name]
    forms = (
        (
            "How do I grow {name}?",
            "[To grow {name}, choose|For {name}, choose|First choose] a place with {light}. Plant in {month} and water {water}. "
            "[Be patient and remove the weeds.|Keep the soil loose.|A little compost helps.]",
        ),
        (
            "When should I plant {name}?",
            "[The best time is {month}.|Plant {name} in {month}.|{month} is a good month.]",
        ),
        (
            "How often should I water {name}?",
            "[Water {name} {water}.|You should water them {water}.]",
        ),
        ("How much sun do {name} need?", "[{name} need {light}.|They need {light}.]"),
    )
    return _filled(rng, forms, name=name, light=light, water=water, month=month)


def _planet(rng: Random) -> Turn:
    name = rng.choice(list(PLANETS))
    place, look = PLANETS[name]
    forms = (
        (
            "[Tell me about|What do you know about|What is] {name}?",
            "{name} is the {place} planet from the sun. It is {look}.",
        ),
        ("Which planet is the {place} one?", "[The {place} planet is {name}.|It is {name}.]"),
        ("How does {name} look?", "{name} is {look}."),
    )
    return _filled(rng, forms, name=name, place=place, look=look)


def _capital(rng: Random) -> Turn:
    country = rng.choice(list(CAPITALS))
    forms = (
        (
            "What is the capital of {country}?",
            "[The capital of {country} is {city}.|It is {city}.]",
        ),
        ("[Where is|In which country is] {city}?", "{city} is the capital of {country}."),
        (
            "Have you been to {country}?",
            "No, I am a program and cannot travel. But I know that {city} is the capital of {country}.",
        ),
    )
    return _filled(rng, forms, country=country, city=CAPITALS[country])


def _dish(rng: Random) -> Turn:
    name = rng.choice(list(DISHES))
    first, second, minutes, tip = DISHES[name]
    forms = (
        (
            "How do I [make|cook|prepare] {name}?",
            "[You need|Take] {first} and {second}. [Cook them|Let it cook] for about {minutes} minutes. {tip}",
        ),
        (
            "What do I need for {name}?",
            "[You need {first} and {second}.|For {name} you need {first} and {second}.]",
        ),
        (
            "How long does {name} take?",
            "[It takes about {minutes} minutes.|About {minutes} minutes.]",
        ),
    )
    return _filled(rng, forms, name=name, first=first, second=second, minutes=minutes, tip=tip)


def _season(rng: Random) -> Turn:
    name = rng.choice(list(SEASONS))
    weather, scene, activity = SEASONS[name]
    forms = (
        (
            "[What is {name} like|Describe {name}|Tell me about {name}]?",
            "In {name} the weather is {weather}. {scene} [It is a good time to|Many people like to] {activity}.",
        ),
        ("What can I do in {name}?", "[In {name} you can {activity}.|You could {activity}.]"),
        ("Do you like {name}?", "I like {name}. {scene}"),
    )
    return _filled(rng, forms, name=name, weather=weather, scene=scene, activity=activity)


def _topic(rng: Random) -> Turn:
    name, sentences = rng.choice(TOPICS)
    count = rng.randint(3, len(sentences))
    chosen = [sentences[i] for i in sorted(rng.sample(range(len(sentences)), count))]
    ask = "[Tell me [something|more] about|What do you think about|Write a few sentences about|Explain] {name}."
    return expand(rng, ask, name=name), " ".join(expand(rng, sentence) for sentence in chosen)


def _story(rng: Random) -> Turn:
    asks = "[Tell me a [short|little|nice] story|Write a [short ||little ]story|Can you tell a story|I want to hear a story][.|, please.|!]"
    return expand(rng, asks), story(rng)


def _echo(rng: Random) -> Turn:
    """Copying trains the same attention pattern as recall."""
    pool = [*ANIMALS, *CAPITALS, *CAPITALS.values(), *SEASONS]
    text = " ".join(rng.choice(pool) for _ in range(rng.randint(2, 8)))
    return expand(rng, "[Repeat after me:|Say this again:|Please repeat:|Repeat:] ") + text, text


def _list(rng: Random) -> Turn:
    kind, pool = rng.choice(
        (
            ("animals", [*ANIMALS]),
            ("countries", [*CAPITALS]),
            ("cities", [*CAPITALS.values()]),
            ("dishes", [*DISHES]),
        )
    )
    word, count = rng.choice((("two", 2), ("three", 3), ("four", 4), ("five", 5)))
    asks = "[Name|List|Tell me|Give me] {word} {kind}."
    return expand(rng, asks, word=word, kind=kind), "\n".join(
        f"{i + 1}. {name}" for i, name in enumerate(rng.sample(pool, count))
    )


def _filled(rng: Random, forms: tuple[Turn, ...], **slots: str) -> Turn:
    asked, reply = rng.choice(forms)
    asked, reply = expand(rng, asked, **slots), expand(rng, reply, **slots)
    return asked[0].upper() + asked[1:], reply[0].upper() + reply[1:]
