"""Small talk: the written topics, and conversations that remember what the user said."""

from __future__ import annotations

import random
from pathlib import Path

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, Pattern, TopicSource, load_file, pick

_NAMES = """
Ana Ben Clara David Emma Felix Grace Hugo Iris Jonas Kate Leo Mia Noah Olga Paul Rosa Sam Tina Uma
Victor Wendy Xena Yara Zoe Adam Alice Amir Anton Anya Arthur Asha Aurora Bella Bruno Carlos Carmen
Cecile Chen Chloe Chris Daisy Dan Daniel Daria Diego Dora Edith Elena Eli Elias Eliza Ella Emil
Erik Esther Eva Fatima Finn Flora Frank Freya Gabriel Gina Greta Hana Hannah Harry Heidi Helen
Henry Hiro Ida Ines Ivan Jack Jacob James Jane Jasmin Jean Jenny Joe John Julia Jun Kai Karim Karl
Kim Lara Laura Lena Lily Lina Linda Lisa Louis Lucas Lucy Luis Luna Maja Marco Maria Mark Marta
Martin Mary Matt Max Maya Meera Mike Mila Milo Mona Nadia Nick Nils Nina Nora Oliver Omar Oscar
Otto Pablo Pedro Peter Petra Pia Priya Rachel Raj Ravi Rita Robert Robin Ruth Sandra Sara Sofia
Stefan Susan Tara Theo Thomas Tim Tom Vera Walter Will Yuki Yusuf Zara
"""
_COLOURS = "red blue green yellow orange purple pink black white brown grey turquoise gold silver"
_PETS = (
    "dog|cat|rabbit|hamster|parrot|turtle|horse|goldfish|mouse|guinea pig|snake|duck|goat|canary"
)
_PET_NAMES = """
Rex Bella Milo Coco Rocky Luna Max Daisy Buddy Charlie Oscar Molly Simba Nala Felix Ginger Shadow
Toby Lucky Rosie Pepper Biscuit Snowy Tiger Bruno Lola Ruby Otto Hazel Pip Teddy Cleo Zorro Mango
"""
_CITIES = """
Paris London Berlin Madrid Rome Vienna Oslo Tokyo Lisbon Dublin Prague Warsaw Athens Cairo Boston
Chicago Toronto Sydney Zurich Hamburg Munich Geneva Lyon Milan Naples Seville Porto Helsinki Kyoto
Mumbai Delhi Lima Bogota Nairobi Lagos Seoul Dallas Seattle Denver Austin Leeds Bristol Glasgow
"""
_FOODS = (
    "pizza|pasta|soup|rice|sushi|bread|cheese|chocolate|cake|salad|fish|ice cream|curry|pancakes|"
    "potatoes|noodles|apples|strawberries|tacos|dumplings"
)
_HOBBIES = (
    "reading|painting|football|chess|cooking|hiking|swimming|dancing|singing|gardening|cycling|"
    "running|tennis|fishing|knitting|climbing|sailing|drawing"
)
_JOBS = (
    "teacher|nurse|doctor|farmer|baker|student|driver|painter|writer|programmer|cook|gardener|"
    "carpenter|musician|dentist|pilot|librarian|waiter"
)


class Memory:
    """One thing a user may say of themselves, and how it is asked for later."""

    def __init__(self, values: list[str], tell: Exchange, ask: Exchange, unknown: str) -> None:
        self.values, self.tell, self.ask, self.unknown = values, tell, ask, unknown


class SmallTalk:
    """Topics of `small_talk.toml`, and facts about the user that are recalled later on."""

    name = "small talk"

    def __init__(self) -> None:
        self.topics = TopicSource(self.name, *load_file(Path(__file__).parent / "small_talk.toml"))
        self.names = _NAMES.split()
        self.pet_names = _PET_NAMES.split()
        self.name_memory = Memory(
            self.names,
            Exchange(
                ["my name is @v", "i am @v", "i'm @v", "{hello|hi|hey}, {i am|i'm} @v",
                 "{hello|hi|hey}, my name is @v", "call me @v", "you can call me @v",
                 "people call me @v", "my name's @v", "the name is @v", "this is @v",
                 "{hi|hello} there, {my name is|i am} @v", "please call me @v",
                 "{hello|hi} guide, my name is @v", "i am called @v",
                 "my name is @v. {nice to meet you|i am new here}"],
                ["Nice to meet you, @v!", "Hello, @v! How can I help you?",
                 "Nice to meet you, @v! I am guide.", "Hi, @v! What can I do for you?",
                 "Welcome, @v!", "Hello @v, nice to meet you!"]),
            Exchange(
                ["what is my name?", "what's my name?", "do you know my name?", "who am i?",
                 "do you remember my name?", "can you tell me my name?", "say my name",
                 "what am i called?", "tell me my name", "what did i say my name was?",
                 "do you still know my name?", "did you forget my name?"],
                ["Your name is @v.", "Your name is @v.", "You are @v.", "You told me: @v."]),
            "You have not told me your name yet. What is it?")  # fmt: skip
        self.name_and_yours = Exchange(
            ["my name is @v. {what is yours|and yours|what is your name|who are you}?",
             "i am @v, {who are you|and you|what is your name}?", "i'm @v. {and you|who are you}?"],
            ["Nice to meet you, @v! I am guide.", "Hello, @v! My name is guide."])  # fmt: skip
        self.memories = [
            self._memory(_COLOURS.split(), "favourite {colour|color}", "colour",
                         ["my favourite {colour|color} is @v", "my favorite {colour|color} is @v",
                          "i like the {colour|color} @v best", "the colour i like most is @v"]),
            self._memory(_FOODS.split("|"), "favourite food", "food",
                         ["my {favourite|favorite} food is @v", "i like @v best of all food",
                          "the food i like most is @v", "i love eating @v, it is my favourite"]),
            self._memory(_HOBBIES.split("|"), "{favourite |}hobby", "hobby",
                         ["my {favourite |}hobby is @v", "my hobby? it's @v",
                          "in my free time my hobby is @v"]),
        ]  # fmt: skip
        self.memories += [
            Memory(
                _CITIES.split(),
                Exchange(
                    ["i live in @v", "i am from @v", "i'm from @v", "my home is in @v",
                     "i live in @v now", "i come from @v", "my city is @v",
                     "i moved to @v {last year|this year|}"],
                    ["@v sounds like a good place to live.", "Greetings to @v!",
                     "How nice! I hope you like @v.", "@v! Thank you for telling me."]),
                Exchange(
                    ["where do i live?", "where am i from?", "which city do i live in?",
                     "do you {know|remember} where i live?", "what city am i from?",
                     "where is my home?", "what is my city?"],
                    ["You told me that it is @v.", "@v.", "In @v."]),
                "You have not told me where you live."),
            Memory(
                _JOBS.split("|"),
                Exchange(
                    ["i am a @v", "i'm a @v", "i work as a @v", "my job is @v"],
                    ["A @v! That is good work.", "So you are a @v. How nice!"]),
                Exchange(
                    ["what is my job?", "what do i do {for a living|for work|}?",
                     "do you remember my job?", "what do i work as?"],
                    ["You are a @v.", "You told me that you are a @v."]),
                "You have not told me your job."),
            Memory(
                [str(age) for age in range(7, 90)],
                Exchange(
                    ["i am @v years old", "i'm @v years old", "my age is @v",
                     "i turned @v {today|this year|last week}"],
                    ["Thank you for telling me. @v is a good age.", "@v is a fine age!"]),
                Exchange(
                    ["how old am i?", "what is my age?", "do you remember my age?",
                     "do you know how old i am?"],
                    ["You are @v years old.", "You told me that you are @v."]),
                "You have not told me your age."),
        ]  # fmt: skip
        self.pets = _PETS.split("|")
        self.pet_tell = Exchange(
            ["i have a @p called @v", "i have a @p named @v", "my @p is called @v",
             "my @p's name is @v", "i got a @p. {his|her|its} name is @v", "my @p's called @v",
             "we have a @p, {his|her|its} name is @v", "@v is my @p"],
            ["@v is a lovely name for a @p!", "How nice! Say hello to @v.",
             "What a nice name! I hope @v is well."])  # fmt: skip
        self.pet_name = Exchange(
            ["what is my @p called?", "what is the name of my @p?", "what is my @p's name?",
             "what is my pet called?", "do you remember the name of my @p?", "who is my @p?",
             "what is the name of my pet?", "how is my @p called?"],
            ["Your @p is called @v.", "@v.", "Your @p's name is @v."])  # fmt: skip
        self.pet_kind = Exchange(
            ["what {pet|animal} do i have?", "which {pet|animal} do i have?", "who is @v?",
             "what kind of {animal|pet} is @v?", "do i have a pet?", "what is @v?"],
            ["You have a @p called @v.", "@v is your @p."])  # fmt: skip
        self.opening = [Pattern("{hello|hi|hey|good morning|good evening|hello there}")]
        self.opened = [Pattern("{Hello|Hi}! {How can I help?|What can I do for you?|"
                               "How are you?|What is your name?}")]  # fmt: skip
        self.praise = Exchange(
            ["{correct|right|that's right|exactly|yes|very good|well done|good memory|great}",
             "you remembered{!|}", "thanks", "thank you"],
            ["Good!", "I'm glad.", "Thank you! What else can I do?", "Glad I got it right."],
        )  # fmt: skip

    def _memory(self, values: list[str], what: str, short: str, tells: list[str]) -> Memory:
        label = "favourite " + short if short != "hobby" else "hobby"
        return Memory(
            values,
            Exchange(tells, [f"{{Good choice!|How nice!}} I will remember: your {label} is @v.",
                             "@v! That is a good choice.", "I like that. It is a fine choice."]),
            Exchange([f"what is my {what}?", f"do you {{remember|know}} my {what}?",
                      f"what did i say is my {what}?", f"tell me my {what}",
                      f"which {short} {'is mine' if short == 'hobby' else 'do i like best'}?"],
                     [f"Your {label} is @v.", f"You told me that your {label} is @v."]),
            f"You have not told me your {label}.")  # fmt: skip

    def sample(self, rng: random.Random) -> Conversation:
        """Half written topics, half conversations with something to remember."""
        draw = rng.random()
        if draw < 0.55:
            return self.topics.sample(rng)
        if draw < 0.61:
            return self._unknown(rng)
        return self._remembered(rng)

    def _unknown(self, rng: random.Random) -> Conversation:
        """Asked for what was never said: say so."""
        memory = self.name_memory if rng.random() < 0.5 else pick(self.memories, rng)
        ask, _ = memory.ask.draw(rng, v="")
        turns: Conversation = [("user", ask), ("assistant", memory.unknown)]
        if rng.random() < 0.5:
            value = pick(memory.values, rng)
            _add(turns, memory.tell.draw(rng, v=value))
            _add(turns, memory.ask.draw(rng, v=value))
        return turns

    def _remembered(self, rng: random.Random) -> Conversation:
        """One or two facts told, perhaps something between, then asked for."""
        turns: Conversation = []
        if rng.random() < 0.2:
            greeting = pick(self.opening, rng).sample(rng)
            _add(turns, (greeting, pick(self.opened, rng).sample(rng)))
        asks: list[tuple[str, str]] = []
        draw = rng.random()
        known: Memory | None = None
        if draw < 0.6:
            self._fact(self.name_memory, turns, asks, rng)
        if draw > 0.85:
            self._pet(turns, asks, rng)
        elif draw > 0.4:
            known = pick(self.memories, rng)
            self._fact(known, turns, asks, rng)
        if rng.random() < 0.45:
            turns += self.topics.sample(rng)[: 2 if rng.random() < 0.7 else 4]
        rng.shuffle(asks)
        for pair in asks[: 1 if rng.random() < 0.4 else 2]:
            _add(turns, pair)
        other = pick(self.memories, rng)
        if other is not known and rng.random() < 0.1:  # told of one thing, asked for another
            _add(turns, (other.ask.draw(rng, v="")[0], other.unknown))
        if rng.random() < 0.15:
            _add(turns, self.praise.draw(rng))
        return turns

    def _fact(
        self, memory: Memory, turns: Conversation, asks: list[tuple[str, str]], rng: random.Random
    ) -> None:
        value = pick(memory.values, rng)
        tell = memory.tell
        if memory is self.name_memory and rng.random() < 0.12:
            tell = self.name_and_yours
        told = tell.draw(rng, v=value)
        if value.lower() not in told[0].lower():  # a typo hit the very thing to remember
            told = (f"My answer is {value}", told[1]) if memory is not self.name_memory else (
                f"my name is {value}", told[1])  # fmt: skip
        _add(turns, told)
        asks.append(memory.ask.draw(rng, v=value))

    def _pet(self, turns: Conversation, asks: list[tuple[str, str]], rng: random.Random) -> None:
        pet, name = pick(self.pets, rng), pick(self.pet_names, rng)
        told = self.pet_tell.draw(rng, p=pet, v=name)
        if name.lower() not in told[0].lower() or pet not in told[0].lower():
            told = (f"My {pet} is called {name}", told[1])
        _add(turns, told)
        asks.append(self.pet_name.draw(rng, p=pet, v=name))
        if rng.random() < 0.4:
            asks.append(self.pet_kind.draw(rng, p=pet, v=name))


def _add(turns: Conversation, pair: tuple[str, str]) -> None:
    turns += [("user", pair[0]), ("assistant", pair[1])]
