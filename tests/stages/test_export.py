"""stages/export.py: round trips through a fresh process with plain transformers, and refusals before anything is published."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from data.tokenizer import load_tokenizer
from models.quantization import folder as exported
from models.storage import read_tensors, write_tensors
from stages import export
from stages.config import StageError
from stages.context import Context
from stages.exporting import checks
from tests.stages import toy_chain

FORMAT = {"max_logit_difference": 1e-4, "max_kl": 0.01, "min_top1": 0.9}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    return toy_chain.tokenize_output(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def rl(tmp_path_factory, tokens) -> Path:
    return toy_chain.training_output(tmp_path_factory.mktemp("rl") / "out", tokens, toy_chain.toy_model(1))


def config(**changes: object) -> export.Config:
    values = {"bf16": FORMAT, "int8": FORMAT, "fidelity_tokens": 1500, "fidelity_seq_len": 64, "fidelity_batch_rows": 4}
    return export.Config.model_validate({**values, **changes})


def context(tmp_path: Path, rl: Path, tokens: Path, item: str) -> Context:
    return Context.for_test(tmp_path, "export", {"rl": rl, "tokenize": tokens}, item=item)


class TestWholeStage:
    """The stage as it runs, fresh process included; the model's head is tied for int8 and untied for bf16."""

    @pytest.fixture(scope="class")
    def bf16(self, tmp_path_factory, tokens) -> tuple[Context, dict[str, float]]:
        folder = tmp_path_factory.mktemp("bf16")
        model = toy_chain.training_output(folder / "rl", tokens, toy_chain.toy_model(2, tied_head=False))
        ctx = context(folder, model, tokens, "bf16")
        return ctx, export.run(config(), ctx)

    @pytest.fixture(scope="class")
    def int8(self, tmp_path_factory, tokens, rl) -> tuple[Context, dict[str, float]]:
        ctx = context(tmp_path_factory.mktemp("int8"), rl, tokens, "int8")
        return ctx, export.run(config(), ctx)

    @pytest.mark.parametrize("made", ["bf16", "int8"])
    def test_folder_and_record(self, made, request, tokens):
        """EXP-01, EXP-04, SFT-04: a plain loader agreed; the folder holds the export, its record, and the tokenizer of training."""
        ctx, metrics = request.getfixturevalue(made)
        assert {path.name for path in ctx.out.iterdir()} == {
            "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "fidelity.json"}  # fmt: skip
        record = json.loads((ctx.out / "fidelity.json").read_text())
        assert {name: record[name] for name in metrics} == metrics
        assert record["format"] == made and record["reload"]["missing_keys"] == record["reload"]["unexpected_keys"] == []
        assert 0 <= ctx.volatiles["reload_max_logit_difference"] <= 1e-4
        assert "reload_max_logit_difference" not in (ctx.out / "fidelity.json").read_text()  # rounding noise is not part of the output
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (ctx.out / name).read_bytes() == (tokens / "tokenizer" / name).read_bytes()

    def test_fidelity(self, bf16, int8):
        """Sizes and divergences are those of the formats: int8 is smaller and a little further away."""
        (ctx, half), (_, quarter) = bf16, int8
        assert half["file_bytes"] == (ctx.out / "model.safetensors").stat().st_size
        assert 16 <= half["bits_per_weight"] < 17.5 and quarter["bits_per_weight"] < 14  # headers weigh much in a toy
        for metrics in (half, quarter):
            assert 0 < metrics["kl_mean"] <= metrics["kl_p99"] <= metrics["kl_max"] < 0.01
            assert 0.9 < metrics["top1_agreement"] <= 1 and abs(metrics["ppl_ratio"] - 1) < 0.01
            assert metrics["num_tokens"] > 500

    @pytest.mark.slow
    def test_a_tampered_folder_is_caught_in_one_go(self, bf16, tokens, tmp_path):
        """EXP-04 and EXP-07 at once: no head tensor, the wrong end token and sampling are all named before publication."""
        source, _ = bf16
        ctx = context(tmp_path, tmp_path, tokens, "bf16")
        shutil.copytree(source.out, ctx.out, dirs_exist_ok=True)
        loaded = exported.load(ctx.out)
        tensors = read_tensors(ctx.out / "model.safetensors")
        del tensors["lm_head.weight"]
        write_tensors(ctx.out / "model.safetensors", tensors, {"format": "pt"})
        (ctx.out / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9, "eos_token_id": 0, "pad_token_id": 0}))
        golden = json.loads((tokens / "golden.json").read_text())
        expected = checks.Expectation(model=loaded, tokenizer=load_tokenizer(tokens / "tokenizer"), golden=golden, end_ids=[2, 0],
                                      rows=[golden["ids"][:20]], tolerance=1e-4)  # fmt: skip
        with pytest.raises(RuntimeError) as caught:
            checks.check_reload(ctx, ctx.out, expected)
        message = str(caught.value)
        assert "missing_keys: lm_head.weight" in message
        assert "logits differ by" in message
        assert "generation_config.json names end token 0, expected [2, 0]" in message
        assert "forced to end token 2 ran to 8 tokens" in message
        assert "samples by default" in message


class TestRefusals:
    def test_unknown_item(self, tmp_path, rl, tokens):
        with pytest.raises(StageError, match="expected one of bf16, int8"):
            export.run(config(), context(tmp_path, rl, tokens, "int3"))

    def test_sft_04_another_tokenizer(self, tmp_path, tokens):
        """SFT-04: a template changed after tokenisation stops the export before anything is written."""
        model = toy_chain.training_output(tmp_path / "rl", tokens, toy_chain.toy_model(1))
        file = model / "tokenizer/tokenizer_config.json"
        values = json.loads(file.read_text())
        file.write_text(json.dumps({**values, "chat_template": values["chat_template"] + " "}))
        ctx = context(tmp_path, model, tokens, "bf16")
        with pytest.raises(ValueError, match="template in .* differ"):
            export.run(config(), ctx)
        assert not any(ctx.out.iterdir())

    def test_diverged_weights(self, tmp_path, tokens):
        broken = toy_chain.toy_model(1)
        with torch.no_grad():
            broken.model.layers[0].mlp.up_proj.weight[0, 0] = float("inf")
        model = toy_chain.training_output(tmp_path / "rl", tokens, broken)
        with pytest.raises(ValueError, match="non-finite"):
            export.run(config(), context(tmp_path, model, tokens, "int8"))

    @pytest.mark.parametrize("kl, top1, named", [(0.02, 0.99, "max_kl"), (0.001, 0.5, "min_top1"), (float("nan"), float("nan"), "max_kl.*min_top1")])
    def test_gates(self, kl, top1, named):
        settings = export.Format(max_logit_difference=1e-4, max_kl=0.01, min_top1=0.9)
        with pytest.raises(RuntimeError, match=f"not published.*export.int8.{named}"):
            export.check_gates("int8", settings, {"kl_mean": kl, "top1_agreement": top1})
        export.check_gates("int8", settings, {"kl_mean": 0.01, "top1_agreement": 0.9})

    def test_unknown_or_missing_key(self):
        with pytest.raises(ValueError, match="Extra inputs"):
            config(max_kl=1.0)
        with pytest.raises(ValueError, match="min_top1"):
            config(int8={"max_logit_difference": 1e-4, "max_kl": 0.01})


def test_fidelity_of_a_model_with_itself(tmp_path, rl, tokens):
    """The meter reads the same tokens for both: no divergence, and no more positions than asked for."""
    model = toy_chain.toy_model(1)
    held_out = [export.open_mds(tokens / kind / "val") for kind in ("text", "chat")]
    result = export.measure(context(tmp_path, rl, tokens, "bf16"), config(fidelity_tokens=512), model, model, held_out)
    assert result["kl_max"] == 0 and result["top1_agreement"] == result["ppl_ratio"] == 1
    assert 100 < result["num_tokens"] <= 512


def test_plan_touches_nothing(rl, tokens):
    ctx = Context.for_plan("export", "int8", 0, {"rl": rl, "tokenize": tokens})
    assert export.plan(config(), ctx)["format"] == "int8"
