"""What the English domain knows: facts as tables, sentences in the grammar of `english.py`."""

# ruff: noqa: E501  (a sentence a line reads better than half a one)

ANIMALS: dict[str, tuple[str, str, str]] = {
    "fox": ("forests and fields", "mice and berries", "clever"),
    "otter": ("rivers and lakes", "fish", "playful"),
    "owl": ("old trees", "mice", "silent in the night"),
    "whale": ("the ocean", "tiny sea animals", "very large"),
    "bear": ("mountains and forests", "berries, roots and fish", "strong"),
    "rabbit": ("meadows", "grass and clover", "quick"),
    "camel": ("the desert", "dry plants", "patient"),
    "penguin": ("the cold south", "fish", "a good swimmer"),
    "lion": ("the grassland", "meat", "brave"),
    "bee": ("gardens and meadows", "nectar", "busy"),
    "turtle": ("ponds and warm seas", "plants", "slow"),
    "giraffe": ("the savanna", "leaves", "tall"),
    "wolf": ("wide forests", "meat", "loyal to its family"),
    "squirrel": ("trees and parks", "nuts", "fast"),
    "frog": ("ponds", "insects", "a good jumper"),
    "eagle": ("high mountains", "small animals", "sharp of sight"),
}

PLANTS: dict[str, tuple[str, str, str]] = {
    "tomatoes": ("full sun", "every day", "May"),
    "carrots": ("full sun", "twice a week", "April"),
    "roses": ("at least six hours of sun", "once a week", "October"),
    "tulips": ("sun in spring", "once a week", "autumn"),
    "herbs": ("plenty of light", "every two days", "April"),
    "beans": ("a warm and sunny spot", "twice a week", "May"),
    "potatoes": ("full sun", "once a week", "April"),
    "ferns": ("shade", "often", "spring"),
    "strawberries": ("a sunny bed", "every two days", "August"),
    "onions": ("full sun", "once a week", "March"),
    "pumpkins": ("a lot of sun", "every day", "May"),
    "sunflowers": ("as much sun as possible", "twice a week", "May"),
}

PLANETS: dict[str, tuple[str, str]] = {
    "Mercury": ("first", "small and grey"),
    "Venus": ("second", "bright and very hot"),
    "Earth": ("third", "blue and full of life"),
    "Mars": ("fourth", "red and dusty"),
    "Jupiter": ("fifth", "the largest of all, with a red spot"),
    "Saturn": ("sixth", "famous for its rings"),
    "Uranus": ("seventh", "pale blue and cold"),
    "Neptune": ("eighth", "deep blue and windy"),
}

CAPITALS: dict[str, str] = {
    "Norway": "Oslo", "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome",
    "Austria": "Vienna", "Portugal": "Lisbon", "Ireland": "Dublin", "Greece": "Athens",
    "Egypt": "Cairo", "Japan": "Tokyo", "Peru": "Lima", "Poland": "Warsaw", "Finland": "Helsinki",
    "Kenya": "Nairobi", "England": "London", "Sweden": "Stockholm", "Denmark": "Copenhagen",
}  # fmt: skip

DISHES: dict[str, tuple[str, str, str, str]] = {
    "tomato soup": ("ripe tomatoes", "an onion", "30", "A little basil makes it better."),
    "pancakes": ("flour, eggs", "milk", "15", "Serve them warm with honey."),
    "rice pudding": ("rice, sugar", "milk", "40", "Stir it often."),
    "apple pie": ("apples", "a simple dough", "60", "Let it cool before you cut it."),
    "pasta": ("noodles", "salt water", "10", "Taste it before you drain it."),
    "omelette": ("three eggs", "some butter", "5", "Do not wait too long, it should be soft."),
    "vegetable stew": ("carrots, potatoes", "beans", "45", "It tastes even better the next day."),
    "bread": ("flour, yeast", "water", "50", "Give the dough time to rise."),
    "lemonade": ("lemons, sugar", "cold water", "5", "Add some ice and mint."),
    "potato salad": ("potatoes", "an onion", "35", "Mix it while it is warm."),
}

SEASONS: dict[str, tuple[str, str, str]] = {
    "spring": (
        "mild and fresh",
        "The first flowers open and the birds sing.",
        "plant seeds in the garden",
    ),
    "summer": (
        "warm and sunny",
        "The days are long and the evenings are soft.",
        "swim in the lake",
    ),
    "autumn": (
        "windy and cool",
        "The leaves turn red and gold.",
        "collect nuts and walk in the forest",
    ),
    "winter": (
        "cold and dark",
        "Snow lies on the roofs and the rooms are warm.",
        "drink hot tea and read a book",
    ),
}

TALK: tuple[tuple[str, str], ...] = (
    ("[Hello|Hi|Hey|Hello there|Hi there][!|.|]",
     "[Hello|Hi][!|! Nice to meet you.] [How can I help you today?|What can I do for you?|How can I help you?]"),
    ("Good [morning|evening|afternoon][!|.|]", "Hello, and thank you. [How can I help you today?|What can I do for you?]"),
    ("[Who are you|What are you|What is your name|Introduce yourself]?",
     "I am Tandem Mini, a small language model. [I can chat, remember lists, do sums and call tools.|"
     "I was trained to chat, to look things up in a list, to do arithmetic and to call tools.]"),
    ("What can you do?", "I can [chat about small things|talk about animals and plants], tell short stories, look up facts "
     "in a list, do arithmetic in steps and call tools."),
    ("[How are you|How are you today|How do you feel]?", "[I am fine, thank you.|I am well, thanks for asking.] [How are you?|And you?|How can I help you?]"),
    ("I am [fine|good|well], thank you.", "[I am glad to hear that.|That is good to hear.] [What can I do for you?|How can I help?]"),
    ("I am [tired|sad|a little tired today|not feeling well].",
     "I am sorry to hear that. [Take a short break and drink some water.|Maybe a walk in the fresh air helps.|A good sleep can do wonders.]"),
    ("I am bored[.|!]", "[Shall I tell you a short story?|You could read a book or take a walk.|Let us talk about animals. Which one do you like?]"),
    ("[Thank you|Thanks|Thank you very much|Thanks a lot][!|.]", "You are welcome[!|.] [Let me know if you need anything else.|I am happy to help.|]"),
    ("[Goodbye|Bye|See you|Good night][!|.]", "[Goodbye|See you soon|Take care][!|.] [Have a nice day.|It was nice talking to you.]"),
    ("[Are you a robot|Are you human|Are you a person]?", "No, I am a small language model. I [live in a few megabytes|am only a program], but I do my best."),
    ("How big are you?", "I am very small, with about three million parameters. That is enough for a little chat."),
    ("[Who made you|Who built you|Who trained you]?", "I was trained from scratch for Tandem, a system that serves language models."),
    ("What is Tandem?", "Tandem is a system that serves language models, from one laptop up to a large cluster."),
    ("[Tell me a joke|Do you know a joke|Make me laugh].",
     "[Why did the tomato turn red? It saw the salad dressing.|What do you call a sleeping bull? A bulldozer.|"
     "Why did the bicycle fall over? It was two tired.|What has many keys but no door? A piano.]"),
    ("What is your favorite [color|colour]?", "I like [blue, because it looks like the sea|green, because it reminds me of the forest|yellow, because it is warm like the sun]."),
    ("What do you like?", "I like [clear questions and short answers|stories about animals|rainy days and good books]."),
    ("[What is the weather like|How is the weather][ today|]?", "I cannot look outside, but I hope the sun is shining where you are."),
    ("What time is it?", "I do not have a clock, so I cannot tell the time."),
    ("[Can you help me|I need help|Please help me][?|.]", "Of course. [Tell me what you need.|What do you need?|What is it about?]"),
    ("[What is the meaning of life|Who will win the election|How do I fix my car|What is quantum physics|Write a program for me|"
     "Explain the stock market|Who wrote this book|Summarize this text|How does a computer work]?",
     "[I am not sure about that.|That is too hard for me.|I do not know that.] I am a small model and know only a few things. "
     "[You can ask me about animals, plants or planets.|I can tell you a story instead.]"),
    ("[Good|Great|Nice|Very good|Well done][!|.]", "[Thank you!|I am glad you like it.] [What else can I do for you?|Do you want to hear more?]"),
    ("Do you sleep?", "No, I do not sleep. I wait until somebody asks me something."),
    ("Can you sing?", "I cannot sing, but I can write a few lines. The moon is bright, the night is long, and in the tree the birds have a song."),
    ("[Write a poem|Write a short poem|Can you write a poem]?",
     "[The rain falls soft on leaf and stone,|The wind goes slowly through the trees,|A lamp is shining in the night,]\n"
     "[the river sings its song alone.|the river carries dreams and leaves.|it fills the room with golden light.]\n"
     "[And when the morning comes at last,|And when the sun comes up again,|And while the stars go drifting by,]\n"
     "[the clouds have gone, the night has passed.|the garden smiles and drinks the rain.|a little bird begins to fly.]"),
)  # fmt: skip

TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("rain", ("Rain falls when [the drops in a cloud become|small drops in the clouds grow] too heavy.",
              "It [fills the rivers|feeds the rivers and lakes] and waters the fields.",
              "[Many people stay inside|Some people take an umbrella], but children like to jump in the puddles.",
              "After the rain the air [smells fresh|is clean and cool].")),
    ("tea", ("Tea is made from leaves and hot water.", "[Green tea is light|Black tea is strong], and [mint tea is fresh|some teas taste like fruit].",
             "Let it [rest|stand] for three to five minutes.", "[A cup of tea is good for a quiet moment.|Many people drink it in the afternoon.]")),
    ("gardening", ("A garden needs [light, water and time|good soil, water and some patience].", "Start with [easy plants like beans|a few herbs] and learn from them.",
                   "[Water in the morning|Water early], when the sun is still low.", "Remove the weeds [every week|often], and the harvest will be better.",
                   "[Bees and butterflies will visit your flowers.|Birds will help you with the insects.]")),
    ("trains", ("A train [carries many people|can carry hundreds of people] over long distances.", "It runs on [rails made of steel|steel rails].",
                "[Modern trains are fast and quiet.|Old trains were driven by steam.]", "From the window you can see [fields, rivers and towns|the land go by].")),
    ("books", ("A book can [take you to far places|show you another world].", "[Some books are short|Some are thin], others have a thousand pages.",
               "You can read [in bed|in the garden|on the train] or anywhere you like.", "[A good book is like a friend.|The best ones we read again and again.]")),
    ("the sea", ("The sea is wide and [deep|full of life].", "Its water is salty and [moves with the wind|never stands still].",
                 "The moon [pulls the water|makes the tides], so it rises and falls [twice a day|every day].", "[Ships cross it with goods from all over the world.|Fish, whales and tiny plants live in it.]")),
    ("sleep", ("Sleep gives the body time to [rest|repair itself].", "Most people need [seven or eight|about eight] hours a night.",
               "A dark and [quiet|cool] room helps.", "[Do not drink coffee late in the day.|Try to go to bed at the same time every day.]")),
    ("music", ("Music is made of [sounds and silence|rhythm and melody].", "It can make people [happy|calm], and it can make them [dance|remember].",
               "[A violin sings, a drum speaks.|A piano has many keys, a flute has a few.]", "[You need practice to play well.|Everybody can sing.]")),
    ("clouds", ("Clouds are made of [tiny drops of water|very small drops or bits of ice].", "[White clouds mean fine weather|Thin clouds are high in the sky], dark ones [bring rain|often bring a storm].",
                "The wind [moves them across the sky|carries them far away].", "Sometimes they look like [animals|ships|mountains].")),
    ("computers", ("A computer follows [instructions|a program], step by step.", "It has [a processor that calculates|a processor] and a memory that [stores data|holds the numbers].",
                   "[It is fast, but it does not think like a person.|It can do billions of steps in a second.]", "[Language models run on computers, and so do I.|I live inside of one.]")),
    ("friendship", ("A friend is somebody who [listens|stays with you in hard times].", "Friends [share|tell each other] good and bad news.",
                    "[You do not need many of them.|One good friend is worth a lot.]", "Friendship needs time and [honest words|trust].")),
    ("bread", ("Bread is [one of the oldest foods|made in almost every country].", "It is made from flour, water, salt and [yeast|some patience].",
               "The dough has to [rest and rise|rise for an hour].", "Fresh bread smells [wonderful|so good that nobody can wait].")),
)  # fmt: skip

STORY_SLOTS: dict[str, list[str]] = {
    "hero": ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Mia", "Noah"],
    "place": [
        "a small village",
        "a house by the sea",
        "a quiet valley",
        "an old city",
        "a cabin in the forest",
        "a town near the mountains",
    ],
    "thing": ["key", "lamp", "map", "kite", "book", "clock", "boat", "violin", "ring", "letter"],
    "spot": [
        "under a tree",
        "in the attic",
        "near the river",
        "behind the mill",
        "on the beach",
        "in the garden",
    ],
    "animal": ["fox", "owl", "rabbit", "cat", "dog", "otter", "crow", "deer"],
    "weather": ["rainy", "sunny", "windy", "foggy", "cold", "bright"],
}

# The parts of a story in their order, and the sentences each is chosen from.
STORY: dict[str, list[str]] = {
    "open": [
        "Once upon a time, {hero} lived in {place}.",
        "{hero} lived in {place} [and knew everybody there|and loved to explore|with an old {animal}].",
        "On a {weather} [morning|day|evening], {hero} [walked|went for a walk] through {place}.",
        "There was once a [child|girl|boy|baker|sailor] named {hero}, who lived in {place}.",
    ],
    "wish": [
        "{hero} [wanted|wished|hoped] to find the lost {thing} that [everyone talked about|nobody had seen for years].",
        "One day {hero} found [an old|a strange|a golden|a broken] {thing} {spot}.",
        "More than anything, {hero} wanted [to have|to repair|to build] a {thing}.",
        "[One night|One morning|In autumn], somebody left a {thing} {spot}.",
    ],
    "trouble": [
        "But [the way was long|the night came early|a storm came up], and {hero} [got lost|was afraid|did not know what to do].",
        "But the {thing} [did not work|was gone the next day|fell into the water].",
        "Nobody [believed {hero}|wanted to help|knew what it was for].",
        "It was a {weather} day, and [the bridge was broken|the road was empty|the door was closed].",
    ],
    "help": [
        "Then [a|a small|an old] {animal} [came out of the dark|sat down beside {hero}|appeared {spot}] and said: [\"Follow me.\"|\"Do not worry.\"|\"I can help you.\"]",
        "Luckily {friend} [came by|was near|heard about it] and [offered to help|had an idea|brought some bread and a light].",
        "{hero} asked {friend} for help, and together they [looked everywhere|made a plan|walked until the sun came up].",
    ],
    "turn": [
        "They [searched|looked] {spot}, and there [they found what they needed|was the answer|it was].",
        "After [a long walk|three days|many hours] they [found the way|reached the other side|understood the secret] at last.",
        "With [patience|courage|a little luck] everything [became clear|turned out well|worked again].",
    ],
    "end": [
        "From that day on, {hero} [was never alone|kept the {thing} in a safe place|told the story to everyone].",
        "{hero} [smiled and went home|thanked everyone and went to sleep], [happy and tired|and the {thing} shone in the moonlight].",
        "And that is how {hero} learned that [small steps lead far|friends are the best treasure|it is good to ask for help].",
        "In the evening they [sat by the fire|had a big dinner|looked at the stars] and laughed about it.",
    ],
}  # fmt: skip
