"""Short stories from a grammar: beginning, problem, help and ending, with the hero asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, Pattern, fill, pick, roughen, sentence

_ANIMALS = (
    "fox bear rabbit mouse cat dog owl hedgehog squirrel turtle frog duck goose horse pony donkey "
    "sheep lamb goat pig cow hen lion tiger elephant monkey giraffe zebra penguin whale dolphin "
    "seal otter beaver badger deer wolf crow sparrow snail kitten puppy dragon bee butterfly hippo "
    "koala"
)
# People go with names of their own kind; "any" fits both.
_PEOPLE = (
    "girl:she boy:he princess:she prince:he queen:she king:he knight:any farmer:any robot:any "
    "wizard:he witch:she giant:any sailor:any baker:any pirate:any child:any"
)
_AT_SEA = "whale dolphin seal"
_SEA = "in the sea|in the blue sea|near an island|in a quiet bay|in the deep ocean"
_SWIMMERS = "frog duck goose otter beaver penguin whale dolphin seal turtle hippo"
_SHE = (
    "Ana Bella Clara Daisy Ella Flora Greta Hana Ida Jenny Kate Lily Lucy Luna Mia Mila Molly Nora "
    "Olga Pia Poppy Rosa Ruby Sara Sofia Tara Tilly Uma Vera Wendy Yuki Zoe Emma Iris Alice Holly "
    "Maya Nina Hazel Amy"
)
_HE = (
    "Tim Ben Carl David Emil Felix Gus Hugo Ivan Jack Kai Leo Max Milo Ned Otto Paul Rex Sam Tom "
    "Victor Will Bruno Oscar Finn Noah Theo Toby Pip Rory Adam Anton Charlie Dan Fred Henry Jonas "
    "Nils Oliver Peter"
)
_PLACES = """
in a forest|in a quiet forest|by the sea|on a farm|in a small village|on a high mountain|in a castle
in a green valley|by a lake|near a river|in a big city|on an island|in a garden|in an old tree
in a little house|under a bridge|in the desert|in the snow|in the jungle|in a cave|on a ship
in a lighthouse|at the edge of a wood|in a windmill|behind a waterfall|on a hill|in a barn
in a sunny meadow|in a library|near a pond|at the foot of a mountain|in an old tower
"""
_TRAITS = (
    "brave little kind clever shy curious lazy funny quiet cheerful gentle small young proud "
    "hungry friendly happy lonely old careful sleepy silly wise"
)
_HELPERS = (
    "an old owl|a kind hedgehog|a small mouse|a wise turtle|a friendly bear|a grey goose|a quick "
    "squirrel|a gentle deer|a clever crow|a big horse|a cheerful frog|a patient snail|a strong "
    "badger|a tiny bee|a white rabbit|a brown dog|a red robin|a young goat|a busy beaver"
)
_OPENINGS = (
    "Once upon a time, there was {ART} named @n, who lived @w.",
    "Once upon a time, {ART} named @n lived @w.",
    "Long ago, {ART} called @n lived @w.",
    "There was once {ART} named @n, whose home was @w.",
    "@n was {ART} who lived @w.",
    "Far away, @w, there lived {ART} named @n.",
    "A long time ago, {ART} named @n lived @w.",
)
_ROUTINES = (
    "Every morning @p looked at the sky and sang a little song.",
    "@P liked warm bread, long walks and good stories.",
    "Every evening @p counted the stars before going to sleep.",
    "@P had a blue hat and wore it every day.",
    "More than anything, @p loved to find new things.",
    "Everybody knew @q laugh, for it was the loudest around.",
    "@P collected round stones and kept them in a box.",
    "@P dreamed of seeing the whole world one day.",
    "On most days @p drank tea and listened to the wind.",
    "@P was always the first to get up and the last to go to bed.",
    "@P kept a small garden with carrots and sunflowers.",
    "On Sundays @p baked a cake for the neighbours.",
)
# Problem, what the hero tried, how the helper set it right.
_PROBLEMS = (
    ("One day a storm blew the roof off @q home.",
     "@n tried to mend it alone, but the wind was too strong.",
     "Then @h came by and held the ladder. Together they built a new roof before night."),
    ("One day @n lost a golden key.",
     "@P looked under every stone, but the key was gone.",
     "@H had seen something shine in the grass. They searched side by side and found it."),
    ("One winter there was nothing left to eat.",
     "@n walked for hours through the cold and found only snow.",
     "Then @h opened the door and shared a pot of hot soup with @m."),
    ("One evening @n got lost in the fog.",
     "@P called out, but nobody answered.",
     "At last @h came with a lantern and showed @m the way home."),
    ("One day the bridge over the river broke.",
     "@n wanted to cross, but the water was deep and fast.",
     "@H knew where a fallen tree lay. They pushed it over the water and had a new bridge."),
    ("One morning @q best friend did not come to play.",
     "@n waited all day and grew sad.",
     "\"Let us go and look,\" said @h. They found the friend ill in bed and brought some tea."),
    ("One night a strange noise woke @m.",
     "@n hid under the blanket and shook.",
     "\"Come and see,\" said @h. It was only a branch at the window, and both laughed."),
    ("One day @n wanted to climb the tallest tree.",
     "@P slipped three times and hurt a foot.",
     "\"Go slowly, one branch after the other,\" said @h. This time @n reached the top."),
    ("One summer the well ran dry.",
     "@n dug in the hard ground, but no water came.",
     "@H listened at a rock and heard a spring. They moved the rock, and cool water came out."),
    ("One day @n broke a cup that belonged to a neighbour.",
     "@P hid the pieces and felt very bad.",
     "\"Just tell the truth,\" said @h. So @n did, and the neighbour was not angry at all."),
    ("One day there was a race, and @n was the slowest of all.",
     "@P trained alone every day and still came last.",
     "@H ran beside @m every morning. At the next race @n finished with a smile."),
    ("One day @n found a small egg in the grass.",
     "@P asked everywhere, but nobody knew whose egg it was.",
     "@H pointed to a nest high above. Together they put the egg back, and the mother bird sang."),
    ("One day @n wanted to learn to swim.",
     "@P was afraid of the deep water and stayed on the shore.",
     "@H stayed close and held @m up. By evening @n could swim all alone."),
    ("One day somebody took all the apples from @q basket.",
     "@n was angry and looked for the thief.",
     "@H found the tracks of a hungry bird with five chicks. So @n gave them the apples."),
    ("One night the moon did not rise.",
     "@n was worried and could not sleep.",
     "@H explained that the moon was only hidden behind a cloud. They waited, and there it was."),
    ("One day @n had no one to play with.",
     "@P built a tower of stones, but it was no fun alone.",
     "Then @h asked, \"May I join you?\" Soon the tower was taller than both of them."),
    ("One day @n wanted to sing at the great feast.",
     "@P was so shy that no sound came out.",
     "@H stood next to @m and began to hum. Then @n sang, and everybody clapped."),
    ("One day a heavy stone rolled in front of @q door.",
     "@n pushed and pushed, but it did not move.",
     "@H brought a long stick. They pushed together, and the stone rolled away."),
    ("One day @n found a map with a red cross on it.",
     "@P followed it, but could not read the last words.",
     "@H could read them: \"Look up.\" Above them hung a bag full of nuts, enough for both."),
    ("One day a little boat drifted away with @q lunch in it.",
     "@n ran along the shore and could not reach it.",
     "@H swam out and pulled it back. They ate the lunch together."),
    ("One autumn it was time to gather food, but @n had slept too long.",
     "@P found only two nuts and one berry.",
     "@H had gathered more than enough and gave @m half of it."),
    ("One day @n made a kite, but it would not fly.",
     "@P ran up and down until @p was tired.",
     "\"It needs a tail,\" said @h. They tied a ribbon to it, and the kite rose to the clouds."),
)  # fmt: skip
_ENDINGS = (
    "From that day on, they were the best of friends.",
    "@n never forgot that a friend makes hard things easy.",
    "That night @n slept well and dreamed of tomorrow.",
    "And @n learned that it is good to ask for help.",
    "They celebrated with cake, and everybody was happy.",
    "After that, @n was never alone again.",
    "And if you go there today, you may still hear them laugh.",
    "@n said thank you and promised to help others, too.",
    "And so it all ended well.",
    "Since then @n tells this story to everyone who will listen.",
    "They walked home together under the stars.",
    "And @n was happy for a long, long time.",
    '"Together we can do anything," said @n, and it was true.',
    "The next day @n brought flowers to say thank you.",
    "From then on, @n smiled at everyone on the way.",
    "And that is how @n found a friend for life.",
)
_ASK = (
    "{tell me|tell|can you tell me|write|write me|please tell me|i want to hear|make up|give me|"
    "i would like|could you tell me|}"
)
_PLAIN = (
    f"{_ASK} a {{short|little|nice|}} story", "story please", "tell me a {bedtime|fairy|short} "
    "{story|tale}", "do you know a {nice|short|good|} story?", "can you tell {me|} a story?",
    "i want a story", "a story please", "tell me {any|some} story", "story time", "tell a story",
    "write {me|} a {very|} short story", "do you know any stories?", "can you write a story?",
)  # fmt: skip
_DETAILED = (
    f"{_ASK} a {{short|little|nice|}} {{story|story|tale|bedtime story}} about @d",
    f"{_ASK} a story about @d",
    "story about @d", "a story about @d, please", "do you know a story about @d?",
    "write a {short|} story. it should be about @d", "a {short|} story with @d",
    "make up a story about @d",
)  # fmt: skip


@dataclass(frozen=True)
class Hero:
    """Whom the story is about, where, and who comes to help."""

    kind: str
    trait: str
    name: str
    she: bool
    place: str
    helper: str


class Stories:
    """A request for a story, the story, and at times a question about it."""

    name = "stories"

    def __init__(self) -> None:
        self.animals = _ANIMALS.split()
        self.people = [pair.split(":") for pair in _PEOPLE.split()]
        self.she, self.he = _SHE.split(), _HE.split()
        self.places = [p.strip() for p in _PLACES.replace("\n", "|").split("|") if p.strip()]
        self.traits, self.helpers = _TRAITS.split(), _HELPERS.split("|")
        self.at_sea, self.sea = _AT_SEA.split(), _SEA.split("|")
        self.swimmers = frozenset(_SWIMMERS.split())
        self.plain = [Pattern(text) for text in _PLAIN]
        self.detailed = [Pattern(text) for text in _DETAILED]
        self.another = [Pattern("{another|another one|one more|tell me another {one|story}|"
                                "one more story|again|more stories|next story}")]  # fmt: skip
        self.after = [
            (Exchange(["what was the @k called?", "what was the name of the @k?",
                       "what is the name of the @k?", "who was the story about?"],
                      ["The @k was called @n."]), 4),
            (Exchange(["where did @n live?", "where does @n live?", "where was that?",
                       "where did the @k live?"],
                      ["@n lived @w."]), 3),
            (Exchange(["who helped @n?", "who helped @m?", "who came to help?",
                       "who helped the @k?"],
                      ["@h helped @m."]), 3),
            (Exchange(["{nice|good|lovely|great} story", "i like {it|that story|this story}",
                       "that was {nice|lovely|a nice story}", "i liked {it|that story}",
                       "beautiful"],
                      ["Thank you! I'm glad you liked it.", "I'm happy you liked it.",
                       "Thank you! Shall I tell another?"]), 3),
            (Exchange(["thanks", "thank you{ for the story|}", "thanks for the story"],
                      ["You're welcome! Shall I tell another?", "You're welcome!"]), 2),
        ]  # fmt: skip
        self.afters = [exchange for exchange, weight in self.after for _ in range(weight)]

    def sample(self, rng: random.Random) -> Conversation:
        """One story; now and then a second one or a word about the first."""
        hero = self._hero(rng)
        asked = self._request(hero, rng)
        short = "short" in asked.lower()
        turns: Conversation = [("user", asked), ("assistant", self.tell(hero, rng, short))]
        draw = rng.random()
        if draw < 0.22:
            pair = pick(self.afters, rng).draw(rng, **_slots(hero))
            turns += [("user", pair[0]), ("assistant", pair[1])]
        elif draw < 0.3:
            again = roughen(pick(self.another, rng).sample(rng), rng)
            turns += [("user", again), ("assistant", self.tell(self._hero(rng), rng, False))]
        return turns

    def _hero(self, rng: random.Random) -> Hero:
        kind, she = pick(self.animals, rng), rng.random() < 0.5
        if rng.random() < 0.22:
            kind, gender = pick(self.people, rng)
            she = she if gender == "any" else gender == "she"
        helper = pick(self.helpers, rng)
        while helper.endswith(" " + kind):
            helper = pick(self.helpers, rng)
        name = pick(self.she if she else self.he, rng)
        place = pick(self.sea if kind in self.at_sea else self.places, rng)
        return Hero(kind, pick(self.traits, rng), name, she, place, helper)

    def _request(self, hero: Hero, rng: random.Random) -> str:
        """Ask for some of what the hero is; whatever is left out the story makes up itself."""
        if rng.random() < 0.25:
            return roughen(pick(self.plain, rng).sample(rng), rng)
        trait = hero.trait if rng.random() < 0.4 else ""
        noun = f"{trait} {hero.kind}".strip()
        if trait == "" and rng.random() < 0.12:  # "a story about Tim the fox", "... about Tim"
            wanted = f"{hero.name} the {hero.kind}" if rng.random() < 0.6 else hero.name
        else:
            wanted = f"{article(noun)} {noun}"
            if rng.random() < 0.4:
                wanted += f" {pick(('named', 'called', 'whose name is'), rng)} {hero.name}"
        if rng.random() < 0.08 and hero.name not in wanted:
            wanted += f" {hero.place}"
        elif rng.random() < 0.14:
            wanted += f" {pick(('who lives', 'that lives', 'living'), rng)} {hero.place}"
        ask = pick(self.detailed, rng).sample(rng)
        typed = roughen(ask.replace("@d", "ZZ"), rng)  # no typo in what the story must repeat
        wanted = wanted.replace("  ", " ")
        return typed.replace("ZZ", wanted.lower() if rng.random() < 0.15 else wanted)

    def tell(self, hero: Hero, rng: random.Random, short: bool) -> str:
        """The story itself, 50 to 110 words."""
        slots = _slots(hero)
        noun = f"{hero.trait} {hero.kind}"
        opening = pick(_OPENINGS, rng).replace("{ART}", f"{article(noun)} {noun}")
        problem, attempt, help_ = pick(_PROBLEMS, rng)
        while "swim" in problem and hero.kind in self.swimmers:
            problem, attempt, help_ = pick(_PROBLEMS, rng)
        parts = [opening]
        if not short or rng.random() < 0.3:
            parts.append(pick(_ROUTINES, rng))
        parts += [problem, attempt, help_, pick(_ENDINGS, rng)]
        text = " ".join(sentence(fill(part, slots)) for part in parts)
        if len(text.split()) < 50:
            parts.insert(1, _ROUTINES[0])
            text = " ".join(sentence(fill(part, slots)) for part in parts)
        return text


def article(noun: str) -> str:
    """ "a" or "an" as the noun begins."""
    return "an" if noun[0] in "aeiou" else "a"


def _slots(hero: Hero) -> dict[str, str]:
    he, his, him = ("she", "her", "her") if hero.she else ("he", "his", "him")
    return {"n": hero.name, "w": hero.place, "k": hero.kind, "h": hero.helper,
            "H": sentence(hero.helper), "p": he, "P": sentence(he), "q": his, "m": him}  # fmt: skip
