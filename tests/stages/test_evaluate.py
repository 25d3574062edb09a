"""stages/evaluate.py: the same exam for five models, reports that can be recomputed, likelihoods against a slow reference."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from data.shards import open_mds
from models.evaluation.statistics import compare
from models.evaluation.summary import summarise
from models.quantization import folder as exported
from stages import evaluate
from stages.config import StageError
from stages.context import Context
from tests.stages import toy_chain

END_IDS, PAD = [2, 0], 0


@pytest.fixture(scope="module")
def deps(tmp_path_factory) -> dict[str, Path]:
    """Outputs of all upstream stages; base differs from sft, the exports come from rl."""
    root = tmp_path_factory.mktemp("deps")
    tokens = toy_chain.tokenize_output(root / "tokens")
    deps = {"tokenize": tokens}
    for seed, name in enumerate(("pretrain", "sft", "rl")):
        deps[name] = toy_chain.training_output(root / name, tokens, toy_chain.toy_model(seed))
    for fmt, write in exported.WRITERS.items():
        write(toy_chain.toy_model(2), root / fmt, tokens / "tokenizer", END_IDS, PAD)
        deps[f"export/{fmt}"] = root / fmt
    return deps


def config(**changes: object) -> evaluate.Config:
    values = {"max_problems": 9, "samples_per_problem": 2, "temperature": 0.8, "pass_k": [1, 2], "max_new_tokens": 5, "generation_batch": 4,
              "text_seq_len": 48, "text_max_rows": None, "text_batch_rows": 3}  # fmt: skip
    return evaluate.Config.model_validate({**values, **changes})


def run(folder: Path, deps: dict[str, Path], item: str, seed: int = 0, **changes: object) -> tuple[Context, dict[str, float]]:
    ctx = Context.for_test(folder, "evaluate", deps, seed=seed, item=item)
    return ctx, evaluate.run(config(**changes), ctx)


def read(ctx: Context) -> tuple[list[dict], dict]:
    records = [json.loads(line) for line in (ctx.out / "samples.jsonl").read_text().splitlines()]
    return records, json.loads((ctx.out / "report.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory, deps) -> dict[str, tuple[Context, dict[str, float]]]:
    root = tmp_path_factory.mktemp("made")
    return {item: run(root / item, deps, item) for item in evaluate.MODELS}


class TestFiveModels:
    def test_one_exam_for_all(self, made):
        """The same problems with the same ids fed, the same text, one identity; different weights."""
        seen = [read(ctx) for ctx, _ in made.values()]
        assert len({json.dumps([[r["id"], r["prompt_ids"], r["answer"]] for r in records]) for records, _ in seen}) == 1
        assert len({report["identity"]["evaluation"] for _, report in seen}) == 1
        assert len({(report["text"]["bytes"], report["text"]["scored_tokens"]) for _, report in seen}) == 1
        assert len({report["weights_sha256"] for _, report in seen}) == 5

    def test_every_accuracy_follows_from_the_records(self, made):
        for ctx, metrics in made.values():
            records, report = read(ctx)
            assert report["tasks"] == summarise(records, [1, 2])
            assert metrics["greedy_accuracy"] == sum(record["correct"] for record in records) / 9
            assert metrics["pass_at_2"] == report["tasks"]["total"]["pass_at_2"]
            assert {name for name in metrics if name.startswith("greedy_accuracy.")} == {f"greedy_accuracy.{task}" for task in toy_chain.TASK_NAMES}
            assert metrics["bits_per_byte_gain"] == metrics["unigram_bits_per_byte"] - metrics["bits_per_byte"]

    def test_decoding_is_written_down(self, made):
        """EVAL-06, EVAL-07: settings and stop ids are in the report; there are no stop strings."""
        _, report = read(made["rl"][0])
        assert report["decoding"] == {
            "greedy": {"temperature": 0}, "sampled": {"temperature": 0.8, "samples": 2, "seed": 0}, "max_new_tokens": 5,
            "stop_ids": END_IDS, "stop_strings": [], "arithmetic": "float32"}  # fmt: skip

    def test_exports_are_close_to_their_source(self, made):
        """bf16 and int8 come from rl: nearly its likelihood, unlike base and sft with other weights."""
        bits = {item: metrics["bits_per_byte"] for item, (_, metrics) in made.items()}
        for fmt in ("bf16", "int8"):
            assert 0 < abs(bits[fmt] - bits["rl"]) < 0.01
        assert min(abs(bits["base"] - bits["rl"]), abs(bits["sft"] - bits["rl"])) > 0.01

    def test_neighbours_can_be_compared(self, made):
        (a, _), (b, _) = made["rl"], made["int8"]
        assert compare(read(a)[0], read(b)[0], num_resamples=500).num_problems == 9

    def test_outputs_hold_no_timings_and_repeat_byte_for_byte(self, made, deps, tmp_path):
        again, _ = run(tmp_path, deps, "int8")
        for name in ("samples.jsonl", "report.json"):
            assert (again.out / name).read_bytes() == (made["int8"][0].out / name).read_bytes()
        assert {path.name for path in again.out.iterdir()} == {"samples.jsonl", "report.json"}
        assert again.volatiles["generated_tokens_per_second"] > 0


class TestLikelihood:
    def reference(self, model, dataset) -> tuple[float, int, int]:
        """Document by document, token by token in disjoint windows of 48 that share a token: NLL, tokens, bytes."""
        nll, num_tokens, num_bytes = 0.0, 0, 0
        for i in range(len(dataset)):
            ids = dataset[i]["tokens"].astype(int).tolist()
            num_bytes += dataset[i]["num_bytes"]
            for start in range(0, max(len(ids) - 1, 1), 47):
                window = torch.tensor([ids[start : start + 48]])
                with torch.no_grad():
                    logp = model(window).double().log_softmax(-1)
                for t in range(window.shape[1] - 1):
                    nll -= logp[0, t, window[0, t + 1]].item()
                    num_tokens += 1
        return nll, num_tokens, num_bytes

    def test_eval_05_equals_documents_scored_apart(self, made, deps):
        """EVAL-05: batching and packing add nothing; every token but a document's first counts once."""
        nll, num_tokens, num_bytes = self.reference(toy_chain.toy_model(2), open_mds(deps["tokenize"] / "text/test"))
        _, report = read(made["rl"][0])
        assert report["text"]["scored_tokens"] == num_tokens
        assert report["text"]["bytes"] == num_bytes
        assert report["text"]["nll_nats"] == pytest.approx(nll, rel=1e-6)
        assert report["text"]["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-6)

    def test_a_uniform_model_costs_the_vocabulary(self, deps, tmp_path):
        model = toy_chain.toy_model(0)
        torch.nn.init.zeros_(model.model.embed_tokens.weight)
        uniform = toy_chain.training_output(tmp_path / "rl", deps["tokenize"], model)
        ctx, metrics = run(tmp_path / "run", {**deps, "rl": uniform}, "rl", text_max_rows=4)
        _, report = read(ctx)
        assert report["text"]["nll_nats"] == pytest.approx(report["text"]["scored_tokens"] * math.log(toy_chain.VOCAB), rel=1e-6)
        assert metrics["bits_per_byte_gain"] < 0


    def test_a_diverged_model_is_refused(self, deps, tmp_path):
        """Weights that are not numbers give no report, and the message says what happened."""
        model = toy_chain.toy_model(0)
        torch.nn.init.constant_(model.model.norm.weight, float("nan"))
        broken = toy_chain.training_output(tmp_path / "rl", deps["tokenize"], model)
        with pytest.raises(RuntimeError, match="weights have diverged"):
            run(tmp_path / "run", {**deps, "rl": broken}, "rl", text_max_rows=2)


class TestSettingsOfTheExport:
    def test_eval_06_generation_config_is_not_obeyed(self, deps, made, tmp_path):
        """EVAL-06: an export that asks for temperature 0.9 and another end token is still evaluated greedily, whatever the seed."""
        folder = tmp_path / "bf16"
        shutil.copytree(deps["export/bf16"], folder)
        (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9, "eos_token_id": 7}))
        greedy = []
        for seed in (1, 2):
            ctx, _ = run(tmp_path / f"seed{seed}", {**deps, "export/bf16": folder}, "bf16", seed=seed)
            records, report = read(ctx)
            greedy.append([record["completion"] for record in records])
            assert report["decoding"]["stop_ids"] == END_IDS
        assert greedy[0] == greedy[1] == [record["completion"] for record in read(made["bf16"][0])[0]]


class TestRefusals:
    def test_unknown_item(self, deps, tmp_path):
        with pytest.raises(StageError, match="expected one of base, sft, rl, bf16, int8"):
            run(tmp_path, deps, "best")

    def test_another_tokenizer(self, deps, tmp_path):
        model = toy_chain.training_output(tmp_path / "rl", deps["tokenize"], toy_chain.toy_model(0))
        file = model / "tokenizer/tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": "other"}))
        with pytest.raises(ValueError, match="template in .* differ"):
            run(tmp_path / "run", {**deps, "rl": model}, "rl")

    def test_a_damaged_shard_is_found_first(self, deps, tmp_path):
        """STR-04: held-out shards are hashed before any token is scored."""
        tokens = tmp_path / "tokens"
        shutil.copytree(deps["tokenize"], tokens)
        shard = tokens / "text/test/shard.00000.mds"
        data = bytearray(shard.read_bytes())
        data[-3] ^= 1
        shard.write_bytes(data)
        with pytest.raises(ValueError, match="damaged shards in .*text/test: shard.00000.mds"):
            run(tmp_path / "run", {**deps, "tokenize": tokens}, "rl")

    @pytest.mark.parametrize(
        "changes, message",
        [({"pass_k": [1, 3]}, "within 1..samples_per_problem=2"), ({"pass_k": [2, 1]}, "to rise"), ({"pass_k": []}, "both, or 0"),
         ({"samples_per_problem": 0}, "within 1..samples_per_problem=0"), ({"temperature": 0.0}, "greater than 0"), ({"extra": 1}, "Extra inputs")],
    )  # fmt: skip
    def test_settings_that_cannot_be_honoured(self, changes, message):
        with pytest.raises(ValueError, match=message):
            config(**changes)


def test_plan_bounds_the_work(deps):
    ctx = Context.for_plan("evaluate", "int8", 0, deps)
    assert evaluate.plan(config(), ctx) == {"model": "export/int8", "answers": 27, "generated_tokens_at_most": 135}
