"""stages/evaluating/answers.py: which problems, how they are judged, what survives an interruption (EVAL-01, EVAL-07)."""

import json
import random

import pytest

from data.tasks import TASKS
from data.tokenizer import load_tokenizer
from models.inference.generate import Completion
from stages.config import StageError
from stages.context import Context, Interrupted
from stages.evaluating import answers
from tests.stages import toy_chain


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return toy_chain.tokenize_output(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def tokenizer(tokens):
    return load_tokenizer(tokens / "tokenizer")


def decoding(**changes: object) -> answers.Decoding:
    values = {"max_new_tokens": 6, "temperature": 1.0, "samples_per_problem": 3, "end_ids": [2, 0], "seed": 0, "batch": 4}
    return answers.Decoding(**{**values, **changes})


class TestChooseProblems:
    def test_tasks_take_turns(self, tokens):
        """Seven problems of three tasks: 3 + 2 + 2, though a task's problems are stored together."""
        problems, too_long = answers.choose_problems(tokens / "prompts/test", 7, 150)
        assert sorted(problem["task"] for problem in problems) == ["addition"] * 3 + ["comparison"] * 2 + ["reversal"] * 2
        assert too_long == 0

    def test_all_when_fewer_than_asked(self, tokens):
        problems, _ = answers.choose_problems(tokens / "prompts/test", 1000, 150)
        assert len({problem["id"] for problem in problems}) == 15

    def test_too_long_prompts_are_left_out_and_counted(self, tokens):
        everything, _ = answers.choose_problems(tokens / "prompts/test", 1000, 150)
        lengths = sorted(len(problem["tokens"]) for problem in everything)
        kept, too_long = answers.choose_problems(tokens / "prompts/test", 1000, lengths[7])
        assert len(kept) + too_long == 15 and len(kept) == sum(length <= lengths[7] for length in lengths)

    def test_no_room_at_all_is_refused(self, tokens):
        with pytest.raises(StageError, match="lower evaluate.max_new_tokens"):
            answers.choose_problems(tokens / "prompts/test", 5, 2)


class TestJudge:
    PROBLEM = {"id": "p1", "task": "addition", "prompt": "4 + 5?", "answer": "9"}

    def judge(self, greedy: str, samples: list[str], problem: dict = PROBLEM) -> dict:
        return answers.judge(problem, [1, 5], answers.Answer(greedy, True), [answers.Answer(text, True) for text in samples])

    def test_record(self):
        assert self.judge("4 + 5 = 9\n#### 9", ["#### 9", "#### 8", "no idea"]) == {
            "id": "p1", "task": "addition", "prompt": "4 + 5?", "prompt_ids": [1, 5], "answer": "9", "completion": "4 + 5 = 9\n#### 9",
            "finished": True, "answered": True, "correct": True, "n": 3, "c": 1, "majority_correct": True,
            "samples": ["#### 9", "#### 8", "no idea"]}  # fmt: skip

    @pytest.mark.parametrize(
        "samples, expected", [(["#### 8", "#### 9", "#### 9.0"], True), (["#### 9", "#### 8", "#### 8"], False), (["?", "?"], False), ([], False)]
    )
    def test_majority_is_taken_over_equal_values(self, samples, expected):
        """9 and 9.0 vote together; samples without an answer do not vote."""
        assert self.judge("", samples)["majority_correct"] is expected

    def test_an_answer_cut_at_the_limit_is_none(self):
        """As in the reward of RL; it does not vote either. That the text holds an answer is still seen."""
        cut, whole = answers.Answer("#### 9", False), answers.Answer("#### 8", True)
        record = answers.judge(self.PROBLEM, [1], cut, [cut, cut, whole])
        assert (record["correct"], record["answered"], record["finished"]) == (False, True, False)
        assert (record["c"], record["majority_correct"]) == (0, False)

    @pytest.mark.parametrize("name", sorted(name for name in TASKS if not name.startswith("rg_")))
    def test_eval_07_gold_answers_score_full_marks(self, name):
        """EVAL-07: worked answers (equals signs, line breaks and all) fed as if generated are all right."""
        rng = random.Random(7)
        for problem in TASKS[name].generate(rng, 30):
            gold = TASKS[name].worked_answer(problem)
            row = {"id": "x", "task": name, "prompt": problem.prompt, "answer": problem.answer}
            record = self.judge(gold, [gold, "Question: = #### wrong\n" + gold], row)
            assert record["correct"] and record["c"] == 2 and record["majority_correct"]


class TestAnswerOf:
    def test_only_the_closing_end_token_is_removed(self, tokenizer):
        ids = tokenizer("a = b\n#### 3")["input_ids"]
        text = "a = b\n#### 3"
        assert answers.answer_of(tokenizer, Completion([*ids, 2], [0.0] * (len(ids) + 1), True)) == answers.Answer(text, True)
        assert answers.answer_of(tokenizer, Completion(ids, [0.0] * len(ids), False)) == answers.Answer(text, False)
        assert answers.answer_of(tokenizer, Completion([1, *ids], [0.0], False)).text.startswith("<|im_start|>")


class TestAnswerAll:
    def run(self, tmp_path, tokens, tokenizer, stop=lambda: False, **changes):
        problems, _ = answers.choose_problems(tokens / "prompts/test", 10, 150)
        ctx = Context.for_test(tmp_path, "evaluate", {})
        ctx.stop_requested = stop
        return ctx, answers.answer_all(ctx, toy_chain.toy_model(3), tokenizer, problems, decoding(**changes))

    def test_eval_01_the_stored_ids_are_fed_and_kept(self, tmp_path, tokens, tokenizer):
        """EVAL-01: each record holds the prompt ids; they begin one turn, once, and are those the template gives."""
        ctx, records = self.run(tmp_path, tokens, tokenizer)
        assert [record["id"] for record in records] == sorted(record["id"] for record in records) and len(records) == 10
        for record in records:
            chat = [{"role": "user", "content": record["prompt"]}]
            assert record["prompt_ids"] == tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
            assert record["n"] == 3 and 0 <= record["c"] <= 3
        assert ctx.volatiles["generated_tokens"] > 0

    def test_same_seed_same_records_other_seed_same_greedy(self, tmp_path, tokens, tokenizer):
        """EVAL-06: greedy answers do not depend on the seed."""
        _, one = self.run(tmp_path / "1", tokens, tokenizer)
        _, again = self.run(tmp_path / "2", tokens, tokenizer)
        _, other = self.run(tmp_path / "3", tokens, tokenizer, seed=5)
        assert one == again
        assert [record["completion"] for record in one] == [record["completion"] for record in other]

    def test_parts_draw_different_noise(self, tmp_path, tokens, tokenizer):
        """The same question first in two parts gets the same greedy answer and other samples."""
        [problem], _ = answers.choose_problems(tokens / "prompts/test", 1, 150)
        twins = [{**problem, "id": name} for name in ("a", "b")]
        ctx = Context.for_test(tmp_path, "evaluate", {})
        a, b = answers.answer_all(ctx, toy_chain.toy_model(3), tokenizer, twins, decoding(batch=1))
        assert a["completion"] == b["completion"] and a["samples"] != b["samples"]
        assert len({answers.part_seed(seed, part) for seed in range(3) for part in range(50)}) == 150

    def test_an_interrupted_run_continues_to_the_same_records(self, tmp_path, tokens, tokenizer):
        _, unbroken = self.run(tmp_path / "unbroken", tokens, tokenizer)
        with pytest.raises(Interrupted):
            self.run(tmp_path / "broken", tokens, tokenizer, stop=(tmp_path / "broken/work/answers-00000.json").is_file)
        done = sorted((tmp_path / "broken/work").glob("answers-*.json"))
        assert len(done) == 1
        ctx, resumed = self.run(tmp_path / "broken", tokens, tokenizer)
        assert resumed == unbroken
        assert ctx.volatiles["generated_tokens"] < sum(4 * 6 for _ in unbroken)  # the first part was not generated again

    def test_greedy_only(self, tmp_path, tokens, tokenizer):
        _, records = self.run(tmp_path, tokens, tokenizer, samples_per_problem=0)
        assert {(record["n"], record["c"], record["majority_correct"]) for record in records} == {(0, 0, False)}
        assert json.loads((tmp_path / "work/answers-00000.json").read_text())
