"""What the tool tasks ask for: one intent a tool, with its names, phrasings and plausible results.

A tool goes by one of several names and so do its parameters: the model has to read the prompt
rather than remember the tool.
"""

from dataclasses import dataclass
from random import Random


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CITIES = _listed(
    """
    Oslo Paris Berlin Madrid Rome Vienna Lisbon Dublin Athens Cairo Tokyo Delhi Lima Quito
    Boston Chicago Denver Seattle Toronto Sydney London Zurich Prague Warsaw Helsinki Nairobi
    """
)
PEOPLE = _listed(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam
    Tina Vera
    """
)
ROOMS = ("kitchen", "bedroom", "bathroom", "office", "hallway", "garage", "living room", "garden")
FOODS = _listed(
    """
    apples bread butter carrots cheese coffee eggs flour garlic honey lemons milk mushrooms
    olives onions pasta pears potatoes rice salt spinach sugar tea tomatoes
    """
)
LANGUAGES = (
    "French",
    "Spanish",
    "German",
    "Italian",
    "Dutch",
    "Polish",
    "Greek",
    "Japanese",
    "Finnish",
)
CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "NOK")
GENRES = ("jazz", "rock", "folk", "opera", "blues", "piano", "dance", "guitar")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EVENTS = (
    "lunch",
    "dinner",
    "meeting",
    "piano lesson",
    "doctor visit",
    "tennis match",
    "concert",
    "picnic",
)
PLANTS = ("roses", "tulips", "tomatoes", "herbs", "lemon tree", "ferns", "daisies", "basil")
MESSAGES = (
    "I am late",
    "see you soon",
    "dinner is ready",
    "the train is late",
    "call me tonight",
    "happy birthday",
    "the key is under the mat",
    "good luck today",
    "I found the book",
    "please bring bread",
    "the door is open",
    "we meet at the station",
)
PHRASES = (
    "good morning",
    "thank you",
    "where is the station",
    "I am hungry",
    "the sea is calm",
    "how much is this",
    "my name is Anna",
    "a table for two",
    "see you tomorrow",
)
WORDS = (
    "harbor",
    "gentle",
    "meadow",
    "curious",
    "lantern",
    "orbit",
    "thunder",
    "patient",
    "canyon",
    "nectar",
)


@dataclass(frozen=True)
class Intent:
    """Something a user wants that one tool does.

    `parameters` maps a slot to (JSON type, names it may have, description); `asks` and `reply` are
    templates over slots, `result` over slots and "made", a fresh number.
    """

    names: tuple[str, ...]
    description: str
    parameters: dict[str, tuple[str, tuple[str, ...], str]]
    asks: tuple[str, ...]
    result: dict[str, str]
    reply: str


def draw_slot(rng: Random, slot: str) -> str | int:
    """A value for a slot, of the slot's JSON type."""
    if slot in _NUMBERS:
        low, high, step = _NUMBERS[slot]
        return rng.randrange(low, high, step)
    if slot == "time":
        return f"{rng.randrange(6, 23):02d}:{rng.choice(('00', '15', '30', '45'))}"
    if slot == "expression":
        return f"{rng.randrange(10, 1000)} {rng.choice('+-*')} {rng.randrange(10, 1000)}"
    return rng.choice(_POOLS[slot])


_NUMBERS = {
    "minutes": (1, 60, 1),
    "amount": (5, 1000, 1),
    "count": (1, 13, 1),
    "percent": (5, 101, 5),
    "degrees": (14, 27, 1),
    "liters": (1, 10, 1),
    "made": (2, 99, 1),
}
_POOLS: dict[str, tuple[str, ...]] = {
    "city": CITIES, "destination": CITIES, "person": PEOPLE, "room": ROOMS, "food": FOODS,
    "language": LANGUAGES, "currency": CURRENCIES, "target": CURRENCIES, "genre": GENRES,
    "day": DAYS, "event": EVENTS, "plant": PLANTS, "message": MESSAGES, "phrase": PHRASES,
    "word": WORDS,
}  # fmt: skip

_CITY = ("string", ("city", "location", "place"), "Name of the city")

INTENTS: tuple[Intent, ...] = (
    Intent(
        ("get_weather", "weather_lookup", "current_weather"),
        "Get the current weather in a city",
        {"city": _CITY},
        (
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Is it raining in {city}?",
            "Tell me the weather for {city}, please.",
        ),
        {"temperature": "{made}", "sky": "cloudy"},
        "It is cloudy in {city} with {made} degrees.",
    ),
    Intent(
        ("set_timer", "start_timer", "countdown"),
        "Start a timer",
        {"minutes": ("integer", ("minutes", "duration", "length"), "How many minutes to wait")},
        (
            "Set a timer for {minutes} minutes.",
            "Please start a timer of {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "I need a {minutes} minute timer.",
        ),
        {"status": "started", "id": "{made}"},
        "Your timer for {minutes} minutes is running.",
    ),
    Intent(
        ("set_alarm", "create_alarm", "wake_up"),
        "Set an alarm at a time of day",
        {"time": ("string", ("time", "at", "hour"), "Time as HH:MM")},
        (
            "Set an alarm for {time}.",
            "Wake me up at {time}.",
            "I have to get up at {time}, set an alarm.",
            "Please make an alarm at {time}.",
        ),
        {"status": "set", "id": "{made}"},
        "The alarm is set for {time}.",
    ),
    Intent(
        ("convert_currency", "exchange_money", "currency_converter"),
        "Convert an amount of money to another currency",
        {
            "amount": ("integer", ("amount", "value"), "Amount of money"),
            "currency": ("string", ("from", "source"), "Currency to convert from"),
            "target": ("string", ("to", "target"), "Currency to convert to"),
        },
        (
            "Convert {amount} {currency} to {target}.",
            "How much is {amount} {currency} in {target}?",
            "Change {amount} {currency} into {target}, please.",
        ),
        {"result": "{made}"},
        "{amount} {currency} is {made} {target}.",
    ),
    Intent(
        ("send_message", "text_contact", "write_message"),
        "Send a message to a person",
        {
            "person": ("string", ("recipient", "to", "person"), "Who gets the message"),
            "message": ("string", ("text", "message", "body"), "What to say"),
        },
        (
            "Send {person} the message: {message}",
            "Tell {person}: {message}",
            "Write to {person}: {message}",
        ),
        {"status": "sent", "id": "{made}"},
        "I sent your message to {person}.",
    ),
    Intent(
        ("add_to_list", "shopping_list_add", "buy_later"),
        "Add an item to the shopping list",
        {
            "food": ("string", ("item", "product"), "What to buy"),
            "count": ("integer", ("quantity", "count"), "How many"),
        },
        (
            "Add {count} {food} to my shopping list.",
            "Put {count} {food} on the list.",
            "I need to buy {count} {food}, please note it.",
        ),
        {"status": "added", "items": "{made}"},
        "I added {food} to your list. It has {made} items now.",
    ),
    Intent(
        ("play_music", "start_playlist", "music_player"),
        "Play music of a genre",
        {"genre": ("string", ("genre", "style", "kind"), "Genre of the music")},
        (
            "Play some {genre}.",
            "I want to hear {genre}.",
            "Put on {genre} music, please.",
            "Can you play {genre}?",
        ),
        {"status": "playing", "tracks": "{made}"},
        "Playing {genre} now. Enjoy!",
    ),
    Intent(
        ("translate_text", "translator", "to_language"),
        "Translate a text into another language",
        {
            "phrase": ("string", ("text", "phrase", "sentence"), "Text to translate"),
            "language": ("string", ("language", "target_language"), "Language to translate into"),
        },
        (
            'Translate "{phrase}" to {language}.',
            'How do I say "{phrase}" in {language}?',
            'Please put "{phrase}" into {language}.',
        ),
        {"status": "done", "score": "{made}"},
        "The translation into {language} is done, with a score of {made}.",
    ),
    Intent(
        ("calculate", "calculator", "evaluate_expression"),
        "Evaluate an arithmetic expression",
        {"expression": ("string", ("expression", "formula", "input"), "Expression to evaluate")},
        (
            "Use the calculator for {expression}.",
            "Compute {expression} with the calculator.",
            "Please calculate {expression} with your tool.",
        ),
        {"result": "{made}"},
        "The calculator says {made}.",
    ),
    Intent(
        ("find_recipe", "search_recipes", "recipe_lookup"),
        "Search recipes with an ingredient",
        {"food": ("string", ("ingredient", "food", "query"), "Ingredient to use")},
        (
            "Find a recipe with {food}.",
            "What can I cook with {food}?",
            "Search for recipes that use {food}.",
        ),
        {"found": "{made}", "best": "soup"},
        "I found {made} recipes with {food}. The best one is a soup.",
    ),
    Intent(
        ("book_table", "reserve_table", "restaurant_booking"),
        "Book a table in a restaurant",
        {
            "count": ("integer", ("people", "guests", "party"), "Number of guests"),
            "time": ("string", ("time", "at"), "Time as HH:MM"),
            "city": _CITY,
        },
        (
            "Book a table for {count} at {time} in {city}.",
            "I need a table in {city} for {count} people at {time}.",
            "Reserve a table for {count} guests in {city}, {time}.",
        ),
        {"status": "booked", "table": "{made}"},
        "Table {made} in {city} is booked for {count} at {time}.",
    ),
    Intent(
        ("set_light", "dim_lights", "light_control"),
        "Set the brightness of the light in a room",
        {
            "room": ("string", ("room", "area", "zone"), "Which room"),
            "percent": ("integer", ("brightness", "level", "percent"), "Brightness from 0 to 100"),
        },
        (
            "Set the light in the {room} to {percent} percent.",
            "Dim the {room} lights to {percent} percent.",
            "Make the {room} light {percent} percent bright.",
        ),
        {"status": "ok", "watts": "{made}"},
        "The light in the {room} is at {percent} percent.",
    ),
    Intent(
        ("set_thermostat", "heating_control", "room_temperature"),
        "Set the temperature of a room",
        {
            "room": ("string", ("room", "area", "zone"), "Which room"),
            "degrees": ("integer", ("degrees", "temperature", "celsius"), "Temperature in degrees"),
        },
        (
            "Heat the {room} to {degrees} degrees.",
            "Set the {room} to {degrees} degrees.",
            "I want {degrees} degrees in the {room}.",
        ),
        {"status": "ok", "minutes": "{made}"},
        "The {room} will be at {degrees} degrees in {made} minutes.",
    ),
    Intent(
        ("create_event", "add_appointment", "calendar_entry"),
        "Put an event into the calendar",
        {
            "event": ("string", ("title", "event", "name"), "What happens"),
            "day": ("string", ("day", "date", "weekday"), "Day of the week"),
            "time": ("string", ("time", "start", "at"), "Time as HH:MM"),
        },
        (
            "Add {event} on {day} at {time} to my calendar.",
            "I have a {event} on {day} at {time}, note it.",
            "Plan {event} for {day}, {time}.",
        ),
        {"status": "saved", "id": "{made}"},
        "{event} is in your calendar for {day} at {time}.",
    ),
    Intent(
        ("find_route", "get_directions", "route_planner"),
        "Find the way from one city to another",
        {
            "city": ("string", ("origin", "from", "start"), "Where to start"),
            "destination": ("string", ("destination", "to", "end"), "Where to go"),
        },
        (
            "How do I get from {city} to {destination}?",
            "Find a route from {city} to {destination}.",
            "Show me the way from {city} to {destination}.",
        ),
        {"hours": "{made}", "by": "train"},
        "The trip from {city} to {destination} takes {made} hours by train.",
    ),
    Intent(
        ("define_word", "dictionary", "lookup_word"),
        "Look up the meaning of a word",
        {"word": ("string", ("word", "term", "entry"), "Word to look up")},
        (
            "What does the word {word} mean?",
            "Look up {word} in the dictionary.",
            "Define {word}, please.",
        ),
        {"page": "{made}", "kind": "noun"},
        "The word {word} is on page {made}.",
    ),
    Intent(
        ("water_plants", "start_watering", "garden_pump"),
        "Water plants in the garden",
        {
            "plant": ("string", ("plant", "target", "bed"), "Which plants"),
            "liters": ("integer", ("liters", "amount", "volume"), "Liters of water"),
        },
        (
            "Water the {plant} with {liters} liters.",
            "Give the {plant} {liters} liters of water.",
            "The {plant} need {liters} liters of water, please.",
        ),
        {"status": "done", "left": "{made}"},
        "The {plant} got {liters} liters. There are {made} liters left.",
    ),
    Intent(
        ("call_contact", "phone_call", "dial"),
        "Call a person by phone",
        {"person": ("string", ("person", "contact", "name"), "Who to call")},
        (
            "Call {person}.",
            "Please phone {person}.",
            "I want to talk to {person}, call now.",
            "Ring {person} for me.",
        ),
        {"status": "calling", "id": "{made}"},
        "I am calling {person} now.",
    ),
)
