"""The held-out questions: hand-written, two hundred, and not in the training text."""

import random
import re
from pathlib import Path

import pytest

from hearth.assets.guide.corpus.mixture import conversation
from hearth.assets.guide.data import GRAM_WORDS, HeldOut, Stream, build_shard, words_of
from hearth.assets.guide.evaluate import HERE, faults, load_conversations, load_questions
from hearth.assets.guide.export import read_gguf
from hearth.assets.guide.tokenizer import END, PAD, from_vocabulary

UNEXPANDED = re.compile(r"\{[^}]*\|")
QUESTIONS = HERE / "questions.jsonl"


@pytest.fixture(scope="module")
def questions():
    return load_questions()


def grams(text):
    words = words_of(text)
    return {" ".join(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1)}


def test_there_are_two_hundred_different_ones(questions):
    assert len(questions) == 200
    assert len({q.id for q in questions}) == len({q.q for q in questions}) == 200
    assert len(load_conversations()) == 30


def test_repeating_the_question_answers_none(questions):
    for question in questions:
        assert question.required and all(question.required)
        assert faults(question, question.q), question.id


def test_the_training_text_shares_no_eight_words_with_them(questions):
    """On what training really sees: packed windows, decoded again."""
    _, vocabulary, _ = read_gguf(HERE / "guide.f16.gguf")
    tokenizer = from_vocabulary(vocabulary)
    held_out = set().union(*(grams(q.q) for q in questions))
    whole = {" ".join(words_of(q.q)) for q in questions}
    assert held_out
    seen = 0
    for join in (False, True):
        stream = Stream(f"test-{join}", 2048 if join else 256, 24, join, 0.15)
        shard = build_shard(stream, 7, 0, conversation, HeldOut.load(QUESTIONS), tokenizer)
        for window in shard.ids:
            turn = []
            for token in [*window.tolist(), END]:
                if token not in (END, PAD):
                    turn.append(token)
                    continue
                text = tokenizer.decode(turn)
                turn = []
                seen += 1
                assert not grams(text) & held_out, text
                assert " ".join(words_of(text)) not in whole
    assert seen > 500


def test_what_shares_them_is_dropped(questions):
    held_out = HeldOut.load(QUESTIONS)
    for question in questions:
        assert held_out.verdict([("user", question.q.upper() + "!!")])
        if grams(question.q):
            quoted = f"someone asked: {question.q} and went"
            assert held_out.verdict([("user", "hi"), ("assistant", quoted)])
    assert not held_out.verdict([("user", "hello"), ("assistant", "Hello!")])


def test_a_missing_file_is_not_an_empty_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        HeldOut.load(tmp_path / "questions.jsonl")


def test_the_same_seed_draws_the_same_text():
    def drawn(seed):
        rng = random.Random(seed)
        return [conversation(rng) for _ in range(50)]

    assert drawn(3) == drawn(3) != drawn(4)


def test_every_conversation_alternates_and_says_something():
    rng = random.Random(5)
    for _ in range(3000):
        turns = conversation(rng)
        roles = [role for role, _ in turns]
        if roles[0] == "system":
            roles = roles[1:]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and roles
        assert all(text.strip() == text != "" for _, text in turns)
        assert not any(UNEXPANDED.search(text) for _, text in turns)


def test_the_cards_topics_add_up_to_its_share(questions):
    card = Path(HERE, "CARD.md").read_text(encoding="utf-8")
    right, share = re.search(r"\*\*(\d+) of 200 \((\d+\.\d) %\)\*\*", card).groups()
    assert float(share) == round(int(right) / 2, 1) >= 75
    topics = [tuple(map(int, found)) for found in re.findall(r"\| (\d+) of (\d+) (?=\|)", card)]
    assert len(topics) == len({q.topic for q in questions})
    assert [sum(column) for column in zip(*topics, strict=True)] == [int(right), 200]
