"""Words letter by letter, the alphabet, and the days and months in their order."""

from __future__ import annotations

import random

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, pick, sentence

_WORDS = """
able about above across act add adult after again age air alarm album alone also always angry
animal answer ant apple april arm army arrow art ask aunt autumn away baby back bag ball balloon
banana band bank basket bath bear beautiful bed bee before begin behind bell below berry best big
bike bird birthday black blanket blue board boat body bone book boot bottle bowl box boy branch
brave bread break breakfast bridge bright bring brother brown brush bucket build bus bush busy
butter butterfly button buy cabin cable cake calendar call camel camera camp candle candy car card
carpet carrot carry castle cat catch chair chalk cheese cherry chicken child chocolate church
circle city class clean clear clever climb clock cloud coat coffee cold color computer cook cookie
corn corner cotton country cousin cow crayon cream cross crown cry cup curtain dance dark daughter
day deep deer desert desk dinner dish doctor dog doll dolphin donkey door dragon draw dream dress
drink drive drum duck ear early earth east easy eat egg eight elephant empty engine enjoy evening
every eye face family farm farmer fast father feather fence field fifteen finger finish fire first
fish five flag flower fly fog food foot forest fork forty forward four fox free fresh friday friend
frog fruit full fun funny game garden gate ghost giant gift giraffe girl glad glass glove goat gold
good grandma grape grass gray great green ground group grow guitar hair hammer hand happy hat have
head heart heavy hello help hen here high hill holiday home honey horse hospital hot hour house
hundred hungry ice idea inside island jacket jam january jar job join joke juice july jump june
jungle key kind king kiss kitchen kite kitten knee knife knight know ladder lake lamb lamp language
large laugh leaf learn left leg lemon letter library light lion listen little long look love lucky
lunch machine magic make map march market may meal meat medicine memory middle milk minute mirror
model monday money monkey month moon morning mother mountain mouse mouth movie museum music nail
name narrow near neck needle neighbor nest never new night nine noise north nose notebook number
nurse ocean october office old onion open orange other oven owl page paint palace paper parent park
party peace peach pear pen pencil penguin people pepper phone photo piano picnic picture pig pillow
pink pirate pizza place plane planet plant plate play please pocket police pond pony pool potato
present pretty prince princess puppy purple puzzle queen question quick quiet rabbit race radio
rain rainbow read ready red rice rich right ring river road robot rock roof room rose round ruler
sad salt sand sandwich saturday school science scissors sea season secret seed september seven
shadow sheep shelf shell ship shirt shoe shop shoulder silver sing sister six skirt sky sleep slow
small smile smoke snail snake snow soap soccer sock soft son song soup south space spider spoon
spring square squirrel stair star station stone store storm story strawberry street strong student
sugar summer sun sunday sweater sweet swim table tail talk tall tea teacher team teeth telephone
ten tent thank thing think thirsty thirteen three thumb thunder thursday ticket tiger time tired
today together tomato tomorrow tooth tower town toy train travel tree triangle truck true tuesday
turtle twelve twenty two umbrella uncle under unicorn valley vegetable very village violin visit
voice walk wall warm wash watch water wave weather wednesday week welcome west wet whale wheat
wheel whisper white wide wild wind window winter wise wolf woman wonder wood word work world write
yard year yellow yesterday young zebra zero zoo
"""
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_MONTHS = "January February March April May June July August September October November December"
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"


class Spelling:
    """Spelling and order questions, one to three in a row."""

    name = "spelling"

    def __init__(self) -> None:
        self.words = _WORDS.split()
        self.days, self.months = _DAYS.split(), _MONTHS.split()
        self.ordinals = _ORDINALS.split()
        self.spell = Exchange(
            ["how do you spell @w?", "how do you spell @w?", "how is @w spelled?", "spell @w",
             "spell {the word|} @w", "can you spell @w {for me|}?", "how do i spell @w?",
             "how to spell @w", "spell @w {letter by letter|for me}", "what is the spelling of @w?",
             "how do you write @w?", "what letters are in @w?", "spelling of @w",
             "how do you spell the word \"@w\"?", "spell \"@w\""],
            ["@w: @s."], capital=False)  # fmt: skip
        self.length = Exchange(
            ["how many letters {has|does} @w{ have|}?", "how many letters are in {the word|} @w?",
             "how many letters are there in @w?", "how long is the word @w?",
             "count the letters in @w"],
            ["@w has @n letters: @s."], capital=False)  # fmt: skip
        self.first = Exchange(
            ["what is the first letter of {the word|} @w?", "which letter does @w {start|begin} "
             "with?", "what letter does @w {start|begin} with?", "first letter of @w?"],
            ["The first letter of @w is @f."])  # fmt: skip
        self.last = Exchange(
            ["what is the last letter of {the word|} @w?", "which letter does @w end with?",
             "what letter does @w end with?", "last letter of @w?"],
            ["The last letter of @w is @l."])  # fmt: skip
        self.alphabet = Exchange(
            ["{say|recite|write|list|tell me} the alphabet", "what is the alphabet?",
             "what are the letters of the alphabet?", "can you say the alphabet?",
             "do you know the {alphabet|abc}?", "list all the letters", "say the abc",
             "can you {recite|write} the alphabet {for me|}?"],
            [", ".join(_ALPHABET) + "."])  # fmt: skip
        self.letters = Exchange(
            ["how many letters {are in|has} the {English|} alphabet?",
             "how many letters are there in the {English|} alphabet?",
             "how many letters does the alphabet have?"],
            ["The English alphabet has 26 letters."])  # fmt: skip
        self.letter_after = Exchange(
            ["{which|what} letter comes after @x?", "what comes after the letter @x?",
             "what is the letter after @x?", "what is the next letter after @x?",
             "letter after @x?", "what comes after @x in the alphabet?"],
            ["@y comes after @x."])  # fmt: skip
        self.letter_before = Exchange(
            ["{which|what} letter comes before @y?", "what comes before the letter @y?",
             "what is the letter before @y?", "letter before @y?",
             "what comes before @y in the alphabet?"],
            ["@x comes before @y."])  # fmt: skip
        self.next = Exchange(
            ["{what|which} {@k|} comes after @x?", "what is the @k after @x?",
             "which @k follows @x?", "what @k comes {next after|after} @x?", "@k after @x?",
             "if {today|this @k} is @x, what is next?"],
            ["@y comes after @x."])  # fmt: skip
        self.before = Exchange(
            ["{what|which} {@k|} comes before @y?", "what is the @k before @y?",
             "what @k comes {just|} before @y?", "@k before @y?"],
            ["@x comes before @y."])  # fmt: skip
        self.week = Exchange(
            ["{name|list|tell me|say|what are} the days of the week", "days of the week?",
             "what are the {seven|} days of {the|a} week?", "can you list the days of the week?",
             "which days are in a week?", "list the weekdays in order",
             "what are the names of the days?"],
            [", ".join(_DAYS.split()[:-1]) + " and Sunday.",
             "The days of the week are " + ", ".join(_DAYS.split()[:-1]) + " and Sunday."],
        )  # fmt: skip
        self.year = Exchange(
            ["{name|list|tell me|say|what are} the months of the year", "months of the year?",
             "what are the {twelve|12|} months {of the year|}?", "which months are in a year?",
             "can you {list|name} the months {of the year|in order|}?",
             "what are the names of the months?", "list {all|} the months"],
            [", ".join(_MONTHS.split()[:-1]) + " and December."])  # fmt: skip
        self.place = Exchange(
            ["{what|which} is the @o @k{ of the @u|}?", "what is the @o @k of the @u?",
             "which @k is the @o {one|of the @u}?"],
            ["The @o @k of the @u is @x."])  # fmt: skip
        kinds = [
            (self._spell, 50),
            (self._length, 12),
            (self._edge, 14),
            (self._alphabet, 4),
            (self._letter, 14),
            (self._order, 16),
            (self._rows, 9),
            (self._nth, 3),
        ]
        self.draws = [kind for kind, weight in kinds for _ in range(weight)]

    def sample(self, rng: random.Random) -> Conversation:
        """One question, or two or three of them."""
        turns: Conversation = []
        draw = rng.random()
        for _ in range(1 if draw < 0.55 else 2 if draw < 0.85 else 3):
            ask, answer = pick(self.draws, rng)(rng)
            turns += [("user", ask), ("assistant", answer)]
        return turns

    def _word(self, exchange: Exchange, rng: random.Random) -> tuple[str, str]:
        """The word itself keeps its letters: a typo in it would ask for another spelling."""
        word = pick(self.words, rng)
        if word in ("monday", "april", "january", "july", "june", "october", "september"):
            word = sentence(word)
        letters = word.upper()
        ask, answer = exchange.draw(
            rng, w=word, s="-".join(letters), n=str(len(word)), f=letters[0], l=letters[-1]
        )
        if word.lower() not in ask.lower():
            ask = f"Spell {word}"
            answer = f"{word}: {'-'.join(letters)}."
        return ask, answer

    def _spell(self, rng: random.Random) -> tuple[str, str]:
        return self._word(self.spell, rng)

    def _length(self, rng: random.Random) -> tuple[str, str]:
        return self._word(self.length, rng)

    def _edge(self, rng: random.Random) -> tuple[str, str]:
        return self._word(self.first if rng.random() < 0.5 else self.last, rng)

    def _alphabet(self, rng: random.Random) -> tuple[str, str]:
        return (self.alphabet if rng.random() < 0.7 else self.letters).draw(rng)

    def _letter(self, rng: random.Random) -> tuple[str, str]:
        at = rng.randrange(25)
        exchange = self.letter_after if rng.random() < 0.6 else self.letter_before
        return exchange.draw(rng, x=_ALPHABET[at], y=_ALPHABET[at + 1])

    def _order(self, rng: random.Random) -> tuple[str, str]:
        names, kind = (self.days, "day") if rng.random() < 0.5 else (self.months, "month")
        at = rng.randrange(len(names))
        exchange = self.next if rng.random() < 0.6 else self.before
        return exchange.draw(rng, x=names[at], y=names[(at + 1) % len(names)], k=kind)

    def _rows(self, rng: random.Random) -> tuple[str, str]:
        return (self.week if rng.random() < 0.5 else self.year).draw(rng)

    def _nth(self, rng: random.Random) -> tuple[str, str]:
        names, kind, unit = self.days, "day", "week"
        if rng.random() < 0.6:
            names, kind, unit = self.months, "month", "year"
        at = rng.randrange(len(names))
        ordinal = "last" if at == len(names) - 1 and rng.random() < 0.5 else self.ordinals[at]
        return self.place.draw(rng, o=ordinal, k=kind, u=unit, x=names[at])
