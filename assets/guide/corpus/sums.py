"""Small arithmetic: sums, differences, times tables, comparing, counting, even and odd."""

from __future__ import annotations

import random
from collections.abc import Callable

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, pick

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_THINGS = (
    "apple apples|pear pears|coin coins|book books|pencil pencils|cookie cookies|marble marbles|"
    "egg eggs|ball balls|flower flowers|card cards|cup cups|stamp stamps|fish fish|banana bananas|"
    "toy toys|shell shells|carrot carrots|cat cats|sweet sweets|orange oranges|stone stones"
)


def in_words(number: int) -> str:
    """0 to 100 in English words."""
    if number < 20:
        return _ONES.split()[number]
    if number == 100:
        return "one hundred"
    tens, ones = divmod(number, 10)
    word = _TENS.split()[tens - 2]
    return f"{word}-{in_words(ones)}" if ones else word


class Sums:
    """Questions about numbers, one to three in a row."""

    name = "sums"

    def __init__(self) -> None:
        self.words = [in_words(number) for number in range(101)]
        self.things = [tuple(pair.split()) for pair in _THINGS.split("|")]
        heads = "{what is|what is|how much is|calculate|compute|work out|{can you|} solve|}"
        self.plus = Exchange(
            [f"{heads} @a plus @b?", f"{heads} @a + @b?", "@a+@b", "@a + @b =", "add @a and @b",
             "what do you get if you add @a and @b?", "what is the sum of @a and @b?",
             "@a and @b make what?", "how much is @a and @b together?", "@a plus @b",
             "what is @a added to @b?", "what does @a plus @b {make|equal}?", "@a+@b=?",
             "can you add @a and @b?", "sum of @a and @b"],
            ["@a1 + @b1 = @c1."])  # fmt: skip
        self.minus = Exchange(
            [f"{heads} @a minus @b?", f"{heads} @a - @b?", "@a-@b", "@a - @b =",
             "subtract @b from @a", "take @b away from @a", "what is @a take away @b?",
             "what is the difference of @a and @b?", "what is @b less than @a?", "@a-@b=?",
             "@a minus @b", "what does @a minus @b {make|equal}?", "what is left if i take @b "
             "from @a?"],
            ["@a1 - @b1 = @c1."])  # fmt: skip
        self.times = Exchange(
            [f"{heads} @a times @b?", f"{heads} @a * @b?", f"{heads} @a x @b?", "@a*@b", "@ax@b",
             "@a times @b", "multiply @a by @b", "multiply @a and @b", "@a \u00d7 @b",
             "what is @a multiplied by @b?", "what is the product of @a and @b?", "@a*@b=?"],
            ["@a1 x @b1 = @c1."])  # fmt: skip
        self.share = Exchange(
            [f"{heads} @a divided by @b?", f"{heads} @a / @b?", "@a/@b", "divide @a by @b",
             "how many times does @b go into @a?"],
            ["@a1 / @b1 = @c1."])  # fmt: skip
        self.double = Exchange(
            ["what is {double|twice|two times} @a?", "double @a", "what is the double of @a?"],
            ["2 x @a1 = @c1."])  # fmt: skip
        self.more = Exchange(
            ["if i have @a @t and {get|find|buy} @b more, how many {@t|} do i have?",
             "i have @a @t and {my friend|my mother|somebody} gives me @b more. how many @t do i "
             "have {now|}?",
             "there are @a @t on the table and i put @b more there. how many are there?",
             "{Tom|Ana|Ben|Mia|Sam} has @a @t and {buys|finds|gets} @b more. how many @t in all?",
             "@a @t plus @b @t?", "if i have @a @t and you give me @b, how many is that?"],
            ["@a1 + @b1 = @c1. That makes @c1 @n."])  # fmt: skip
        self.fewer = Exchange(
            ["if i have @a @t and {lose|give away|sell} @b, how many {@t|} are left?",
             "i have @a @t and give @b to {a friend|my sister|Tom}. how many @t do i have {left|}?",
             "there are @a @t on the table and i take @b away. how many are left?",
             "{Tom|Ana|Ben|Mia|Sam} has @a @t and {loses|gives away} @b. how many @t are left?"],
            ["@a1 - @b1 = @c1. That leaves @c1 @n."])  # fmt: skip
        self.bigger = Exchange(
            ["which {number|} is {bigger|larger|greater|more}, @a or @b?",
             "what is {bigger|larger|more}, @a or @b?", "is @a {bigger|larger|more} or @b?",
             "which of @a and @b is the {bigger|larger} one?", "@a or @b, which is bigger?"],
            ["@h is bigger than @l."])  # fmt: skip
        self.smaller = Exchange(
            ["which {number|} is {smaller|less|lower}, @a or @b?",
             "what is {smaller|less|lower}, @a or @b?",
             "which of @a and @b is the smaller one?", "@a or @b, which is smaller?"],
            ["@l is smaller than @h."])  # fmt: skip
        self.isbigger = Exchange(
            ["is @a {bigger|larger|greater|more} than @b?"], ["@y, @h is bigger than @l."]
        )
        self.parity = Exchange(
            ["is @a {even or odd|odd or even|an even or an odd number}?",
             "is the number @a even or odd?", "@a: even or odd?"],
            ["@a1 is @p."])  # fmt: skip
        self.iseven = Exchange(["is @a {@w|an @w number}?"], ["@y, @a1 is @p."])
        self.after = Exchange(
            ["{what|which number} comes {after|right after} @a?", "what is the number after @a?",
             "what is the next number after @a?"],
            ["@c1 comes after @a1."])  # fmt: skip
        self.before = Exchange(
            ["{what|which number} comes {before|right before} @a?",
             "what is the number before @a?"],
            ["@c1 comes before @a1."])  # fmt: skip
        self.upto = Exchange(
            ["count to @b", "count {up|} to @b", "count from @a to @b", "can you count to @b?",
             "count up to @b for me", "list the numbers from @a to @b", "numbers from @a to @b",
             "can you count from @a to @b?", "please count to @b"],
            ["@s."])  # fmt: skip
        self.span = Exchange(
            ["count from @a to @b", "count {up|} from @a to @b",
             "list the numbers {from|between} @a {to|and} @b", "can you count from @a to @b?",
             "say the numbers from @a to @b"],
            ["@s."])  # fmt: skip
        self.down = Exchange(
            ["count {down|backwards|backward} from @b", "count down from @b to 1",
             "count backwards from @b to 1", "can you count {down|backwards} from @b?",
             "count from @b to 1", "count {backwards|down} from @b, please", "countdown from @b"],
            ["@s."])  # fmt: skip
        self.steps = Exchange(
            ["count by @w to @b", "count to @b by @w", "count in @w to @b",
             "can you count by @w {up|} to @b?", "count up to @b in steps of @k"],
            ["@s."])  # fmt: skip
        self.inword = Exchange(
            ["how do you write {the number|} @a in words?", "what is @a in words?",
             "write {the number|} @a in words", "@a in words?"],
            ["@a1 in words is @w."])  # fmt: skip
        self.digits = Exchange(
            ["what is @w as a number?", "write @w in digits", "@w in digits?",
             "what number is @w?"],
            ["@a1."])  # fmt: skip
        self.kinds: list[tuple[Callable[[random.Random], tuple[str, str]], int]] = [
            (self._plus, 26), (self._minus, 22), (self._times, 16), (self._share, 3),
            (self._story, 9), (self._compare, 8), (self._parity, 5), (self._next, 4),
            (self._count, 12), (self._double, 2), (self._words, 2)]  # fmt: skip
        self.draws = [kind for kind, weight in self.kinds for _ in range(weight)]

    def sample(self, rng: random.Random) -> Conversation:
        """One question, or two or three of them."""
        turns: Conversation = []
        draw = rng.random()
        for _ in range(1 if draw < 0.5 else 2 if draw < 0.8 else 3):
            ask, answer = pick(self.draws, rng)(rng)
            turns += [("user", ask), ("assistant", answer)]
        return turns

    def _said(self, number: int, words: bool) -> str:
        return self.words[number] if words and 0 <= number <= 100 else str(number)

    def _pair(
        self, exchange: Exchange, a: int, b: int, c: int, rng: random.Random
    ) -> tuple[str, str]:
        words = rng.random() < 0.2
        slots = {"a1": str(a), "b1": str(b), "c1": str(c)}
        if words:  # "three+four" is not typed by anybody, so words go with words
            while True:
                ask, answer = exchange.draw(rng, **slots, a=self.words[a], b=self.words[b])
                signs = ("+", "*", "/", "=", "\u00d7", "-", " x ", f"{self.words[a]}x")
                if not any(sign in ask.lower() for sign in signs):
                    return ask, answer
        return exchange.draw(rng, **slots, a=str(a), b=str(b))

    def _plus(self, rng: random.Random) -> tuple[str, str]:
        a, b = rng.randrange(21), rng.randrange(21)
        return self._pair(self.plus, a, b, a + b, rng)

    def _minus(self, rng: random.Random) -> tuple[str, str]:
        a, b = rng.randrange(21), rng.randrange(21)
        if a < b and rng.random() < 0.85:  # a few go below zero
            a, b = b, a
        return self._pair(self.minus, a, b, a - b, rng)

    def _times(self, rng: random.Random) -> tuple[str, str]:
        a, b = rng.randrange(11), rng.randrange(11)
        return self._pair(self.times, a, b, a * b, rng)

    def _share(self, rng: random.Random) -> tuple[str, str]:
        b, c = rng.randrange(1, 11), rng.randrange(11)
        return self.share.draw(rng, a1=str(b * c), b1=str(b), c1=str(c), a=str(b * c), b=str(b))

    def _double(self, rng: random.Random) -> tuple[str, str]:
        a = rng.randrange(1, 21)
        return self.double.draw(rng, a1=str(a), c1=str(2 * a), a=str(a))

    def _story(self, rng: random.Random) -> tuple[str, str]:
        one, many = pick(self.things, rng)
        a, b = rng.randrange(2, 21), rng.randrange(2, 21)
        words = rng.random() < 0.15
        exchange, c = self.more, a + b
        if rng.random() < 0.5:
            a, b = max(a, b), min(a, b)
            exchange, c = self.fewer, a - b
        return exchange.draw(
            rng, a1=str(a), b1=str(b), c1=str(c), n=one if c == 1 else many, t=many,
            a=self._said(a, words), b=self._said(b, words),
        )  # fmt: skip

    def _compare(self, rng: random.Random) -> tuple[str, str]:
        top = 21 if rng.random() < 0.7 else 101
        a, b = rng.sample(range(top), 2)
        exchange = pick((self.bigger, self.smaller, self.isbigger), rng)
        words = rng.random() < 0.12
        return exchange.draw(
            rng, h=str(max(a, b)), l=str(min(a, b)), y="Yes" if a > b else "No",
            a=self._said(a, words), b=self._said(b, words),
        )  # fmt: skip

    def _parity(self, rng: random.Random) -> tuple[str, str]:
        a = rng.randrange(51)
        kind, asked = ("odd" if a % 2 else "even"), pick(("even", "odd"), rng)
        exchange = self.parity if rng.random() < 0.6 else self.iseven
        return exchange.draw(
            rng, a1=str(a), p=kind, w=asked, y="Yes" if kind == asked else "No", a=str(a)
        )

    def _next(self, rng: random.Random) -> tuple[str, str]:
        a = rng.randrange(1, 51)
        if rng.random() < 0.6:
            return self.after.draw(rng, a1=str(a), c1=str(a + 1), a=str(a))
        return self.before.draw(rng, a1=str(a), c1=str(a - 1), a=str(a))

    def _count(self, rng: random.Random) -> tuple[str, str]:
        draw = rng.random()
        top = pick((3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 20),
                   rng)  # fmt: skip
        words = rng.random() < 0.3
        shown = self._said(top, words)
        if draw < 0.38:
            return self.upto.draw(rng, s=_row(range(1, top + 1)), a=self._said(1, words), b=shown)
        if draw < 0.58:
            low = rng.randrange(0, top)
            low = min(low, top - 2)
            text = _row(range(low, top + 1))
            return self.span.draw(rng, s=text, a=self._said(low, words), b=shown)
        if draw < 0.8:
            return self.down.draw(rng, s=_row(range(top, 0, -1)), b=shown)
        step, name = pick(((2, "twos"), (2, "twos"), (3, "threes"), (5, "fives"), (10, "tens")),
                          rng)  # fmt: skip
        top = step * rng.randrange(3, 11)
        return self.steps.draw(
            rng, s=_row(range(step, top + 1, step)), w=name, k=str(step), b=str(top)
        )

    def _words(self, rng: random.Random) -> tuple[str, str]:
        a = rng.randrange(101)
        exchange = self.inword if rng.random() < 0.5 else self.digits
        return exchange.draw(rng, a1=str(a), w=self.words[a], a=str(a))


def _row(numbers: range) -> str:
    return ", ".join(map(str, numbers))
