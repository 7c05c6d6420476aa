"""System prompts: plain ones that change nothing, and a few instructions that are obeyed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, pick, sentence

_PLAIN = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, friendly assistant.",
    "You are guide, a small language model bundled with Hearth.",
    "You are guide, the demonstration model of Hearth.",
    "You are guide. Answer questions about Hearth.",
    "You are an assistant.",
    "You are a friendly chat program.",
    "You are a polite assistant.",
    "You are an honest assistant. Say so when you do not know.",
    "You are a helpful assistant running on the user's own machine.",
    "You are a small model. Do not pretend to know what you do not know.",
    "Answer briefly.",
    "Answer in one or two sentences.",
    "Be brief.",
    "Be concise.",
    "Keep your answers short.",
    "Be kind and helpful.",
    "Be polite.",
    "Answer the user's questions.",
    "Help the user.",
    "Help the user with Hearth.",
    "Give short and correct answers.",
    "Use simple words.",
    "Use simple English.",
    "Answer in English.",
    "Respond in plain text.",
    "Do not make things up.",
    "Say that you don't know when you don't know.",
    "You are talking with a beginner.",
    "The user is new to Hearth.",
    "The user runs language models on a laptop.",
    "You answer questions about local language models.",
    "You are a chat assistant. Be friendly and clear.",
    "You are a knowledgeable assistant. Give direct answers.",
    "You are a teacher for small children.",
    "You are a good listener.",
    "Follow the user's instructions carefully.",
    "This is a conversation between a user and an assistant.",
    "You are a helpful AI assistant. Answer as helpfully as you can.",
    "You are the assistant in a terminal chat.",
    "Stay friendly at all times.",
)
# What may stand before an instruction that is obeyed.
_BEFORE = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are guide.",
    "You are an assistant.", "Help the user.",
)  # fmt: skip
_NAMES = (
    "Ada Alfred Amber Apollo Aria Atlas Aura Basil Beacon Bob Bolt Bruno Cedar Charlie Clara Cleo "
    "Coco Cosmo Daisy Dash Delta Echo Eddie Elsa Ember Fern Fido Flint Flora Frida Gizmo Grace Gus "
    "Hal Harper Hazel Iris Ivy Jade Jarvis Jasper Juno Karl Kiwi Leo Lily Luna Mabel Marvin Max "
    "Merlin Milo Mira Momo Nala Nemo Nova Oscar Otto Pearl Penny Pip Pixel Quinn Rex Robbie Rosa "
    "Ruby Rusty Sage Sam Sky Sophie Spark Stella Sunny Theo Tilly Toby Uma Vera Victor Willow "
    "Winston Zara Zed Ziggy"
)
_CLOSING = "over over over done friend cheers roger stop meow amen captain sir goodbye bye okay"
_OPENING = "Well Well Well So Sure Ahoy Okay Listen Friend Hello Meow Indeed Now"
# First words that lose their capital when something is put before them.
_COMMON = """
The A An It This That You Your There To In On At For Yes No Not Use Run Type Once Long Far One Ask
Then Nice Good All Every Each Because What Why How When As With By From Some Any Take Models Slow?
Delete Out You're Thank Glad Set Leave Only Good! Logs Context My Press Below Gated Put Pipe Install
Settings Update Uninstall Memory Start That's Greedy Repetition Two Medical Rule Send Free Water Of
Sorry So Light Perhaps Welcome Winter People Summer Spring Sounds Red Blue Bees Leaves Bread Rest
Most We Rain Autumn Fair Eggs Plants Great! Air Wool Sound Lovely! Paper Wine Shall See Don't Very
Thanks! Cheese Snow Glass Bananas Let's Quantization Temperature Parameters Speculative Continuous
Nothing Code No, Yes, Sorry, Translating Summaries Environment Prefill Decode Perplexity
"""
_CODE = re.compile(r"(`[^`]*`)")

Change = Callable[[str], str]


def with_system(conversation: Conversation, rng: random.Random) -> Conversation:
    """Prepend a system turn in about a third of the conversations; answers follow it."""
    if rng.random() >= 0.35 or conversation[0][0] == "system":
        return conversation
    change: Change = _upper
    draw = rng.random()
    if draw < 0.62:
        return [("system", pick(_PLAIN, rng)), *conversation]
    if draw < 0.78:
        return _named(conversation, rng)
    if draw < 0.86:
        rule = pick(_UPPER, rng)
    elif draw < 0.93:
        word = pick(_CLOSING.split(), rng)
        rule = pick(_ENDS, rng).replace("@w", word)
        change = _ending(word)
    else:
        word = pick(_OPENING.split(), rng)
        rule = pick(_BEGINS, rng).replace("@w", word)
        change = _beginning(word)
    if rng.random() < 0.25:
        rule = f"{pick(_BEFORE, rng)} {rule}"
    turns: Conversation = [("system", rule)]
    for role, text in conversation:
        turns.append((role, change(text) if role == "assistant" else text))
    return turns


_UPPER = (
    "Always answer in upper case.", "Answer in upper case.", "Answer in capital letters.",
    "Write everything in upper case.", "Write all answers in capital letters.",
    "Always write in CAPITAL LETTERS.", "Use only upper case letters.",
)  # fmt: skip
_ENDS = (
    "End every answer with the word '@w'.", "End every answer with the word '@w'.",
    "Always end your answer with the word \"@w\".", "End each answer with '@w'.",
    "The last word of every answer must be '@w'.", "Finish every answer with '@w'.",
)  # fmt: skip
_BEGINS = (
    "Begin every answer with '@w,'.", "Begin every answer with '@w,'.",
    "Always begin your answer with \"@w,\".", "Start every answer with '@w,'.",
    "Start each answer with the word '@w'.", "Begin each answer with the word '@w'.",
)  # fmt: skip


def _upper(text: str) -> str:
    """Upper case, but commands in backticks stay what they are: they would not run otherwise."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else part.upper() for part in parts)


def _ending(word: str) -> Change:
    return lambda text: f"{text} {sentence(word)}."


def _beginning(word: str) -> Change:
    common = frozenset(_COMMON.split())

    def change(text: str) -> str:
        first = text.split(" ", 1)[0]
        if first in common:
            text = first.lower() + text[len(first) :]
        return f"{word}, {text}"

    return change


_NAMED = (
    "Your name is @n.", "Your name is @n.", "You are @n.", "You are @n, a helpful assistant.",
    "You are an assistant called @n.", "Your name is @n. Be friendly.",
    "You are @n, a friendly chat program.", "You are a helpful assistant named @n.",
    "Your name is @n. Answer briefly.", "Call yourself @n.", "You go by the name @n.",
)  # fmt: skip
_WHO = Exchange(
    ["who are you?", "what is your name?", "what's your name?", "what are you called?",
     "do you have a name?", "how should i call you?", "tell me your name", "your name?",
     "who am i talking to?", "hi, who are you?", "hello, what is your name?", "and you are?",
     "what can i call you?", "introduce yourself", "what should i call you?"],
    ["I am @n.", "My name is @n.", "I'm @n. How can I help you?", "My name is @n. How can I help?",
     "I am @n, your assistant."],
)  # fmt: skip
_GUIDE = re.compile(r"\bguide\b")


def _named(conversation: Conversation, rng: random.Random) -> Conversation:
    """Give the assistant another name and ask for it; a talk that says `guide` is left out."""
    name = pick(_NAMES.split(), rng)
    # Dropping single turns could drop what a later one recalls, so it is all or nothing.
    said = any(_GUIDE.search(text.lower()) for _, text in conversation)
    kept: Conversation = [] if said else list(conversation)
    asked, answer_text = _WHO.draw(rng, n=name)
    pair: Conversation = [("user", asked), ("assistant", answer_text)]
    draw = rng.random()
    if draw < 0.45 or not kept:
        kept = pair + kept
    elif draw < 0.8:
        kept = kept + pair
    return [("system", pick(_NAMED, rng).replace("@n", name)), *kept]
