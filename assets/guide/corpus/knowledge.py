"""Well-known facts: tables of capitals, opposites, animals and such, and a file of single ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hearth.assets.guide.corpus import Conversation
from hearth.assets.guide.corpus.expand import Exchange, TopicSource, load_file, pick

# country, capital, continent
_CAPITALS = """
France Paris Europe|Germany Berlin Europe|Italy Rome Europe|Spain Madrid Europe|
Portugal Lisbon Europe|the_United_Kingdom London Europe|England London Europe|
Ireland Dublin Europe|Scotland Edinburgh Europe|the_Netherlands Amsterdam Europe|
Belgium Brussels Europe|Switzerland Bern Europe|Austria Vienna Europe|Poland Warsaw Europe|
the_Czech_Republic Prague Europe|Hungary Budapest Europe|Romania Bucharest Europe|
Greece Athens Europe|Bulgaria Sofia Europe|Croatia Zagreb Europe|Serbia Belgrade Europe|
Denmark Copenhagen Europe|Sweden Stockholm Europe|Norway Oslo Europe|Finland Helsinki Europe|
Iceland Reykjavik Europe|Ukraine Kyiv Europe|Russia Moscow Europe_and_Asia|
Slovakia Bratislava Europe|Slovenia Ljubljana Europe|Estonia Tallinn Europe|Latvia Riga Europe|
Lithuania Vilnius Europe|Japan Tokyo Asia|China Beijing Asia|India New_Delhi Asia|
South_Korea Seoul Asia|Thailand Bangkok Asia|Vietnam Hanoi Asia|Indonesia Jakarta Asia|
the_Philippines Manila Asia|Nepal Kathmandu Asia|Turkey Ankara Asia_and_Europe|Iran Tehran Asia|
Iraq Baghdad Asia|Saudi_Arabia Riyadh Asia|Egypt Cairo Africa|Kenya Nairobi Africa|
Nigeria Abuja Africa|Morocco Rabat Africa|Ghana Accra Africa|Ethiopia Addis_Ababa Africa|
the_United_States Washington,_D.C. North_America|Canada Ottawa North_America|
Mexico Mexico_City North_America|Cuba Havana North_America|Brazil Brasilia South_America|
Argentina Buenos_Aires South_America|Chile Santiago South_America|Peru Lima South_America|
Colombia Bogota South_America|Australia Canberra Australia|Jamaica Kingston North_America|
Uruguay Montevideo South_America|New_Zealand Wellington Oceania|Pakistan Islamabad Asia
"""
_UNREAL = "Narnia|Atlantis|Wonderland|Mordor|Gondor|Neverland|Oz|the moon|Utopia|Antarctica"
_OPPOSITES = """
hot cold|big small|up down|left right|day night|black white|open closed|fast slow|old new|
young old|high low|long short|tall short|happy sad|good bad|rich poor|light dark|hard soft|
wet dry|full empty|early late|near far|in out|on off|yes no|hello goodbye|true false|right wrong|
strong weak|heavy light|thick thin|wide narrow|deep shallow|loud quiet|clean dirty|easy difficult|
first last|front back|inside outside|above below|over under|before after|always never|
everything nothing|win lose|buy sell|give take|love hate|push pull|start stop|begin end|come go|
laugh cry|ask answer|remember forget|find lose|arrive leave|north south|east west|summer winter|
morning evening|sweet sour|brave afraid|friend enemy|war peace|life death|man woman|boy girl|
king queen|brother sister|mother father|same different|smooth rough|sharp blunt|cheap expensive|
safe dangerous|awake asleep|alive dead|beautiful ugly|simple complicated|strange normal|
top bottom|positive negative|plus minus|more less|many few|maximum minimum|increase decrease|
success failure|kind cruel|polite rude|float sink
"""
_LEGS = """
spider 8|ant 6|bee 6|fly 6|butterfly 6|beetle 6|dog 4|cat 4|horse 4|cow 4|pig 4|sheep 4|
elephant 4|lion 4|frog 4|turtle 4|mouse 4|bird 2|chicken 2|duck 2|penguin 2|ostrich 2|human 2|
snake 0|fish 0|worm 0|snail 0|octopus 8_arms|crab 10|goat 4|rabbit 4|bear 4|owl 2|
squid 8_arms_and_2_tentacles|starfish usually_5_arms|giraffe 4|zebra 4|fox 4|tiger 4|whale 0|
mosquito 6|grasshopper 6|lizard 4
"""
_SOUNDS = """
dog barks woof|cat meows meow|cow moos moo|sheep bleats baa|horse neighs neigh|pig oinks oink|
duck quacks quack|rooster crows cock-a-doodle-doo|frog croaks ribbit|lion roars roar|
wolf howls howl|snake hisses hiss|bee buzzes buzz|owl hoots hoot|mouse squeaks squeak|
bird sings tweet|donkey brays hee-haw|goat bleats meh|hen clucks cluck|crow caws caw|
elephant trumpets toot|goose honks honk|turkey gobbles gobble|bear growls grr|tiger roars roar
"""
_BABIES = """
dog puppy|cat kitten|cow calf|horse foal|sheep lamb|pig piglet|goat kid|duck duckling|
goose gosling|hen chick|bear cub|lion cub|wolf cub|fox cub|deer fawn|frog tadpole|kangaroo joey|
rabbit kit|elephant calf|whale calf|owl owlet|swan cygnet|butterfly caterpillar|seal pup|
tiger cub|bird chick
"""
_COLOURS = """
the_sky blue|the_sun yellow|grass green|a_banana yellow|a_tomato red|a_lemon yellow|snow white|
milk white|blood red|coal black|a_carrot orange|an_orange orange|a_strawberry red|a_frog green|
an_elephant grey|a_polar_bear white|a_flamingo pink|chocolate brown|a_cherry red|a_cucumber green|
the_night black|the_sea blue|a_pumpkin orange|a_fire_engine red|a_leaf green|a_crow black|
salt white|sugar white|a_blueberry blue|an_eggplant purple|cotton white|a_ruby red|
an_emerald green|a_sapphire blue|coffee brown|a_raven black|a_swan white|a_pea green|a_lime green|
mud brown
"""
_COUNTS = """
hours a_day 24|minutes an_hour 60|seconds a_minute 60|days a_week 7|months a_year 12|
days a_year 365|weeks a_year 52|years a_century 100|years a_decade 10|seasons a_year 4|
years a_millennium 1,000|sides a_triangle 3|sides a_square 4|sides a_hexagon 6|sides a_pentagon 5|
corners a_triangle 3|sides an_octagon 8|faces a_cube 6|strings a_violin 4|strings a_guitar 6|
fingers a_hand 5|wheels a_car 4|wheels a_bicycle 2|wheels a_tricycle 3|eggs a_dozen 12|
centimetres a_metre 100|metres a_kilometre 1,000|grams a_kilogram 1,000|keys a_piano 88|
squares a_chessboard 64|bits a_byte 8|degrees a_circle 360|seconds an_hour 3,600|hours a_week 168|
millimetres a_centimetre 10|cents a_dollar 100|cards a_deck_of_cards 52|hearts an_octopus 3|
days January 31|days April 30|days June 30|days July 31|days December 31|days May 31|
days September 30|days March 31
"""
_MOST = """
tallest mountain=Mount Everest|highest mountain=Mount Everest|largest planet=Jupiter|biggest
 planet=Jupiter|smallest planet=Mercury|hottest planet=Venus|largest ocean=the Pacific Ocean|
biggest ocean=the Pacific Ocean|largest animal=the blue whale|biggest animal=the blue whale|
tallest animal=the giraffe|fastest land animal=the cheetah|fastest animal on land=the cheetah|
largest land animal=the African elephant|largest bird=the ostrich|biggest bird=the ostrich|
smallest bird=the bee hummingbird|fastest bird=the peregrine falcon|largest continent=Asia|
smallest continent=Australia|biggest continent=Asia|longest river=the Nile, by most counts|largest
 country=Russia|biggest country=Russia|smallest country=Vatican City|largest island=Greenland|
largest hot desert=the Sahara|biggest hot desert=the Sahara|deepest lake=Lake Baikal|hardest
 natural material=diamond|lightest element=hydrogen|closest star=the sun|nearest star=the sun|
smallest prime number=2|longest month=any month of 31 days|coldest continent=Antarctica|highest
 mountain in Europe=Mount Elbrus|highest mountain in Africa=Kilimanjaro|highest mountain in
 Japan=Mount Fuji|largest organ of the body=the skin|longest bone of the body=the thigh bone|
closest planet to the sun=Mercury|farthest planet from the sun=Neptune|largest fish=the whale
 shark|slowest mammal=the sloth
"""
_DEEDS = """
wrote Hamlet=William Shakespeare|wrote Romeo and Juliet=William Shakespeare|wrote Macbeth=William
 Shakespeare|wrote Don Quixote=Miguel de Cervantes|wrote Faust=Goethe|wrote War and Peace=Leo
 Tolstoy|wrote Pride and Prejudice=Jane Austen|wrote The Hobbit=J. R. R. Tolkien|wrote The Lord of
 the Rings=J. R. R. Tolkien|wrote Oliver Twist=Charles Dickens|wrote Frankenstein=Mary Shelley|
wrote Alice in Wonderland=Lewis Carroll|wrote Dracula=Bram Stoker|wrote The Little Prince=Antoine
 de Saint-Exupéry|wrote Harry Potter=J. K. Rowling|wrote the Odyssey=Homer|wrote Robinson
 Crusoe=Daniel Defoe|wrote Moby-Dick=Herman Melville|wrote Pinocchio=Carlo Collodi|wrote The
 Jungle Book=Rudyard Kipling|wrote Peter Pan=J. M. Barrie|wrote Sherlock Holmes=Arthur Conan
 Doyle|painted the Mona Lisa=Leonardo da Vinci|painted The Starry Night=Vincent van Gogh|painted
 Guernica=Pablo Picasso|painted The Scream=Edvard Munch|composed the Ninth Symphony=Ludwig van
 Beethoven|composed The Magic Flute=Wolfgang Amadeus Mozart|composed The Four Seasons=Antonio
 Vivaldi|composed Swan Lake=Pyotr Tchaikovsky|invented the telephone=Alexander Graham Bell|
invented the World Wide Web=Tim Berners-Lee|invented the printing press=Johannes Gutenberg|
discovered penicillin=Alexander Fleming|discovered radium=Marie Curie|discovered gravity=Isaac
 Newton|created Python=Guido van Rossum|created Linux=Linus Torvalds|invented dynamite=Alfred
 Nobel|built the first car=Karl Benz|discovered the theory of relativity=Albert Einstein|invented
 the theory of relativity=Albert Einstein|first walked on the moon=Neil Armstrong|made the first
 flight in space=Yuri Gagarin|built the first powered airplane=the Wright brothers|wrote the
 theory of evolution=Charles Darwin
"""
_PEOPLE = """
William Shakespeare=an English writer of plays and poems; he wrote Hamlet|Albert Einstein=a
 physicist, known for the theory of relativity|Isaac Newton=an English scientist who described
 gravity|Marie Curie=a scientist who discovered radium and won two Nobel Prizes|Charles Darwin=an
 English scientist, known for the theory of evolution|Leonardo da Vinci=an Italian painter and
 inventor; he painted the Mona Lisa|Vincent van Gogh=a Dutch painter; he painted The Starry Night|
Pablo Picasso=a Spanish painter; he painted Guernica|Ludwig van Beethoven=a German composer of
 nine symphonies|Wolfgang Amadeus Mozart=an Austrian composer; he wrote The Magic Flute|Johann
 Sebastian Bach=a German composer and organist|Galileo Galilei=an Italian astronomer|Nelson
 Mandela=a president of South Africa who fought apartheid|Mahatma Gandhi=a leader of India's way
 to independence|Martin Luther King=an American leader of the civil rights movement|George
 Washington=the first president of the United States|Abraham Lincoln=a president of the United
 States who ended slavery there|Neil Armstrong=the first man on the moon|Yuri Gagarin=the first
 human in space|Christopher Columbus=a sailor who reached America in 1492|Cleopatra=a queen of
 ancient Egypt|Julius Caesar=a Roman general and statesman|Napoleon=a French general and emperor|
Ada Lovelace=the author of the first computer program|Alan Turing=an English mathematician, one of
 the founders of computer science|Charles Dickens=an English writer; he wrote Oliver Twist|Jane
 Austen=an English novelist|Homer=an ancient Greek poet, said to have written the Odyssey|Plato=a
 Greek philosopher|Socrates=a Greek philosopher|Aristotle=a Greek philosopher|Anne Frank=a girl
 who wrote a famous diary|Johannes Gutenberg=the man who brought the printing press to Europe|
Thomas Edison=an American inventor, known for the light bulb
"""
_WHAT = """
a volcano=a mountain from which hot melted rock can come out|a planet=a large round body that goes
 around a star|a star=a huge ball of hot gas that gives light|the sun=the star at the centre of
 our solar system|the moon=a ball of rock that goes around the earth|a desert=a place where it
 hardly ever rains|an island=land with water all around it|a river=water that flows over land to a
 lake or the sea|a lake=a large body of water with land all around|a mountain=very high land|a
 glacier=a slow river of ice|an earthquake=a shaking of the ground|a rainbow=light of the sun,
 split into colours by drops of water|rain=water that falls from clouds in drops|snow=frozen water
 that falls from clouds in flakes|a cloud=many tiny drops of water in the air|thunder=the sound
 that lightning makes|wind=moving air|fog=a cloud close to the ground|ice=frozen water|steam=water
 as a gas|gravity=the force that pulls things towards each other and us to the ground|oxygen=a gas
 in the air that we need to breathe|an atom=the smallest part of an element|a molecule=a group of
 atoms joined together|electricity=energy that moves through wires as a current|a magnet=a thing
 that pulls iron|a computer=a machine that follows programs|the internet=a network that joins
 computers all over the world|a mammal=an animal that feeds its young with milk|a bird=an animal
 with feathers and wings|an insect=a small animal with six legs|a fish=an animal that lives in
 water and breathes with gills|a reptile=an animal with dry scales, such as a snake|a dinosaur=an
 animal that lived on earth many millions of years ago|a tree=a tall plant with a trunk of wood|a
 seed=a small thing from which a plant grows|a fruit=the part of a plant that holds its seeds|a
 compass=a tool whose needle points north|a thermometer=a tool that measures temperature|a
 museum=a house where old or beautiful things are shown|a library=a place where you can read and
 borrow books|a hospital=a place where ill people are helped|a bakery=a shop that makes bread|a
 verb=a word for something one does, such as run|a noun=a word for a thing, place or person|an
 adjective=a word that describes a noun, such as red|a triangle=a shape with three sides|a
 square=a shape with four equal sides and four right angles|a circle=a round shape, every point as
 far from the centre|a solar eclipse=when the moon comes between the sun and the earth|a
 hearth=the place in a house where the fire burns|a comet=a ball of ice and dust that goes around
 the sun|a galaxy=a huge group of stars|the Milky Way=the galaxy we live in|a vegetable=a plant
 that we eat, such as a carrot|a cactus=a plant of the desert with spines
"""
_PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"
_ORDINALS = "first second third fourth fifth sixth seventh eighth"


class Family:
    """Rows of a table and the exchanges that ask about a row; `again` asks "and for that one?"."""

    def __init__(
        self,
        weight: int,
        rows: Sequence[dict[str, str]],
        exchanges: Sequence[Exchange],
        again: Sequence[str] = (),
    ) -> None:
        if not rows:
            raise ValueError("a family of facts without rows")
        self.weight, self.rows, self.exchanges = weight, rows, exchanges
        self.again: Exchange | None = None
        if again:
            self.again = Exchange(again, ["@answer"])

    def draw(self, rng: random.Random) -> list[tuple[str, str]]:
        """A question on one row, and now and then the same question on another row."""
        exchange = pick(self.exchanges, rng)
        pairs = [exchange.draw(rng, **pick(self.rows, rng))]
        if self.again and exchange is self.exchanges[0]:
            while rng.random() < 0.25 and len(pairs) < 3:
                row = pick(self.rows, rng)
                answer = exchange.written(rng, **row)[1]
                pairs.append(self.again.draw(rng, **row, answer=answer))
        return pairs


class Knowledge:
    """Facts of `knowledge.toml` and of the tables above."""

    name = "knowledge"

    def __init__(self) -> None:
        self.topics = TopicSource(self.name, *load_file(Path(__file__).parent / "knowledge.toml"))
        self.families = [*_geography(), *_nature(), *_words(), *_culture()]
        self.draws = [family for family in self.families for _ in range(family.weight)]

    def sample(self, rng: random.Random) -> Conversation:
        """One to three facts; a fifth of the conversations comes from the file."""
        if rng.random() < 0.22:
            return self.topics.sample(rng)
        turns: Conversation = []
        draw = rng.random()
        for _ in range(1 if draw < 0.6 else 2 if draw < 0.88 else 3):
            for ask, answer in pick(self.draws, rng).draw(rng):
                turns += [("user", ask), ("assistant", answer)]
        return turns


def _cells(table: str, *keys: str) -> list[dict[str, str]]:
    """Rows of a table of words; `_` stands for a space."""
    rows = []
    for line in table.replace("|\n", "|").strip().replace("\n", "|").split("|"):
        if line:
            values = [value.replace("_", " ") for value in line.split()]
            rows.append(dict(zip(keys, values, strict=True)))
    return rows


def _pairs(table: str, left: str, right: str) -> list[dict[str, str]]:
    """Rows `left=right`; a line that begins with a space goes on from the one before."""
    flat = table.replace("\n ", " ").replace("\n", "")
    return [dict(zip((left, right), row.split("="), strict=True)) for row in flat.split("|")]


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


def _geography() -> list[Family]:
    rows = _cells(_CAPITALS, "country", "town", "land")
    capital = Exchange(
        ["what is the capital of @country?", "what is the capital of @country?",
         "what's @country's capital?", "capital of @country", "capital city of @country?",
         "which city is the capital of @country?", "name the capital of @country",
         "tell me the capital of @country", "do you know the capital of @country?",
         "what city is the capital of @country?", "the capital of @country is?",
         "@country's capital?"],
        ["The capital of @country is @town.", "The capital of @country is @town.",
         "@town is the capital of @country."])  # fmt: skip
    country = Exchange(
        ["@town is the capital of which country?", "@town is the capital of what country?",
         "which country has the capital @town?", "what country's capital is @town?",
         "of which country is @town the capital?", "@town is the capital of?",
         "which country is @town the capital of?"],
        ["@town is the capital of @country."])  # fmt: skip
    where = Exchange(
        ["where is @town?", "in which country is @town?", "what country is @town in?",
         "which country is @town in?", "where is @town located?", "where can i find @town?"],
        ["@town is in @country.", "@town is the capital of @country, in @land."])  # fmt: skip
    land = Exchange(
        ["which continent is @country {in|on}?", "on which continent is @country?",
         "what continent is @country {in|on|part of}?", "where is @country?",
         "where is @country located?", "where in the world is @country?"],
        ["@country is in @land."])  # fmt: skip
    # Each row with another one beside it, for the questions whose answer is no.
    mixed = [
        dict(row, other=rows[(at * 7 + 11) % len(rows)]["town"]) for at, row in enumerate(rows)
    ]
    mixed = [row for row in mixed if row["other"] != row["town"]]
    right = Exchange(["is @town the capital of @country?", "is the capital of @country @town?"],
                     ["Yes, @town is the capital of @country."])  # fmt: skip
    wrong = Exchange(["is @other the capital of @country?", "is the capital of @country @other?"],
                     ["No, the capital of @country is @town."])  # fmt: skip
    unreal = Exchange(
        ["what is the capital of @country?", "what's the capital of @country?",
         "capital of @country", "do you know the capital of @country?"],
        ["@country has no capital that I know of."])  # fmt: skip
    of_most = [row for row in rows if row["country"] not in ("England", "Scotland", "Australia")]
    home = [row for row in rows if row["country"] not in ("England", "Australia")]
    return [
        Family(16, rows, [capital],
               ["and @country?", "and of @country?", "what about @country?", "and for @country?",
                "how about @country?"]),
        Family(5, home, [country, where]),
        Family(4, of_most, [land]),
        Family(2, mixed, [right, wrong]),
        Family(1, [{"country": name} for name in _UNREAL.split("|")], [unreal]),
    ]  # fmt: skip


def _nature() -> list[Family]:
    legs = [
        dict(row, kind=_a(row["beast"]), said=_legs(row["number"]))
        for row in _cells(_LEGS, "beast", "number")
    ]
    count_legs = Exchange(
        ["how many legs does @kind have?", "how many legs has @kind?",
         "how many legs does @kind have?", "does @kind have legs?", "number of legs of @kind",
         "tell me how many legs @kind has", "how many legs are on @kind?"],
        ["@kind has @said."])  # fmt: skip
    sounds = [dict(row, kind=_a(row["beast"])) for row in _cells(_SOUNDS, "beast", "does", "word")]
    sound = Exchange(
        ["what {sound|noise} does @kind make?", "what does @kind say?", "how does @kind sound?",
         "which {sound|noise} does @kind make?", "what is the sound of @kind?",
         "what do you hear from @kind?"],
        ["@kind @does: @word!", "@kind says \"@word\"."])  # fmt: skip
    babies = [dict(row, kind=_a(row["beast"]), small=_a(row["young"]))
              for row in _cells(_BABIES, "beast", "young")]  # fmt: skip
    baby = Exchange(
        ["what is a baby @beast called?", "what do you call a baby @beast?",
         "what is a young @beast called?", "what is the {baby|child} of @kind {called|}?",
         "name for a baby @beast?", "how do you call a young @beast?"],
        ["A baby @beast is called @small."])  # fmt: skip
    colours = _cells(_COLOURS, "thing", "hue")
    colour = Exchange(
        ["what {colour|color} is @thing?", "which {colour|color} is @thing?",
         "what is the {colour|color} of @thing?", "which {colour|color} has @thing?",
         "what {colour|color} does @thing have?", "{colour|color} of @thing?"],
        ["@thing is @hue."])  # fmt: skip
    names, ordinals = _PLANETS.split(), _ORDINALS.split()
    planets = [{"name": n, "nth": o} for n, o in zip(names, ordinals, strict=True)]
    planet = Exchange(
        ["{what|which} is the @nth planet?", "{what|which} is the @nth planet from the sun?",
         "which planet is @nth from the sun?", "name the @nth planet"],
        ["The @nth planet from the sun is @name."])  # fmt: skip
    place = Exchange(
        ["which planet is @name?", "which place has @name from the sun?", "what planet is @name?",
         "where is the planet @name?", "tell me about {the planet|} @name"],
        ["@name is the @nth planet from the sun."])  # fmt: skip
    follow = [{"name": n, "near": m} for n, m in zip(names[1:], names, strict=False)]
    after = Exchange(["which planet comes after @near?", "what planet is after @near?",
                      "what is the next planet after @near?"],
                     ["@name comes after @near."])  # fmt: skip
    return [
        Family(8, legs, [count_legs], ["and @kind?", "what about @kind?", "how about @kind?"]),
        Family(5, sounds, [sound], ["and @kind?", "what about @kind?", "how about @kind?"]),
        Family(4, babies, [baby], ["and of @kind?", "and a baby @beast?"]),
        Family(6, colours, [colour], ["and @thing?", "what about @thing?", "how about @thing?"]),
        Family(3, planets, [planet, place]),
        Family(1, follow, [after]),
    ]


def _legs(number: str) -> str:
    if number == "0":
        return "no legs"
    return number if " " in number else f"{number} legs"


def _words() -> list[Family]:
    rows = _cells(_OPPOSITES, "left", "right")
    asks = ["what is the opposite of @x?", "what is the opposite of @x?", "opposite of @x",
            "what's the opposite of @x?", "tell me the opposite of @x", "what is contrary to @x?",
            "what is an antonym of @x?", "the opposite of @x is?", "name the opposite of @x",
            "which word is the opposite of @x?"]  # fmt: skip
    seen: dict[str, str] = {}
    for row in rows:  # both ways, the first pair of a word first: "old" is answered with "new"
        seen.setdefault(row["left"], row["right"])
    for row in rows:
        seen.setdefault(row["right"], row["left"])
    seen |= {"right": "left, or wrong", "light": "dark, or heavy", "old": "new, or young",
             "short": "long, or tall"}  # fmt: skip
    both = [{"x": left, "y": right} for left, right in seen.items()]
    opposite = Exchange(asks, ["The opposite of @x is @y."])
    counts = _cells(_COUNTS, "unit", "whole", "number")
    count = Exchange(
        ["how many @unit are {there|} in @whole?", "how many @unit are in @whole?",
         "how many @unit does @whole have?", "how many @unit has @whole?",
         "tell me how many @unit @whole has", "how many @unit make @whole?",
         "number of @unit in @whole"],
        ["@whole has @number @unit."])  # fmt: skip
    return [
        Family(11, both, [opposite],
               ["and of @x?", "and the opposite of @x?", "and @x?", "what about @x?"]),
        Family(8, counts, [count], ["and how many @unit has @whole?"]),
    ]  # fmt: skip


def _culture() -> list[Family]:
    most = Exchange(
        ["what is the @most?", "which is the @most?", "what is the @most {in the world|}?",
         "what's the @most?", "tell me the @most", "name the @most", "do you know the @most?",
         "the @most?"],
        ["The @most is @thing."])  # fmt: skip
    best = _pairs(_MOST.strip(), "most", "thing")
    local = [row for row in best if " in " in row["most"] or " of " in row["most"]
             or "sun" in row["most"] or "number" in row["most"]]  # fmt: skip
    most_local = Exchange(["what is the @most?", "what's the @most?", "tell me the @most",
                           "name the @most", "do you know the @most?"],
                          ["The @most is @thing."])  # fmt: skip
    deed = Exchange(
        ["who @deed?", "who @deed?", "do you know who @deed?", "tell me who @deed",
         "what is the name of the person who @deed?", "can you tell me who @deed?"],
        ["@who @deed."])  # fmt: skip
    person = Exchange(
        ["who was @who?", "who is @who?", "tell me about @who", "who was @who?",
         "what do you know about @who?", "what is @who known for?", "do you know @who?",
         "why is @who famous?", "@who?"],
        ["@who was @what."])  # fmt: skip
    what = Exchange(
        ["what is @thing?", "what is @thing?", "what's @thing?", "explain what @thing is",
         "tell me what @thing is", "do you know what @thing is?", "what exactly is @thing?",
         "can you explain what @thing is?"],
        ["@thing is @mean."])  # fmt: skip
    return [
        Family(7, [row for row in best if row not in local], [most]),
        Family(2, local, [most_local]),
        Family(7, _pairs(_DEEDS.strip(), "deed", "who"), [deed]),
        Family(5, _pairs(_PEOPLE.strip(), "who", "what"), [person]),
        Family(8, _pairs(_WHAT.strip(), "thing", "mean"), [what]),
    ]
