"""Exercise the CUDA paths of models/ on one device and write what was found as JSON.

`python -m tests.gpu_check [--out FILE] [--quick]`. Needs torch and nothing else of the pipeline's environment (models/ alone is
imported). Each check compares a CUDA path with the same computation in higher precision and states its tolerance; speeds are
ratios within the run. Without a CUDA device it says so and exits 2. Sized to end within eight minutes on an H200.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.inference.generate import generate
from models.losses.cross_entropy import chunked_cross_entropy_sum, cross_entropy_sum
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.precision import apply_precision

SHAPE = dict(vocab_size=32_768, num_layers=8, hidden_size=1024, intermediate_size=3072, num_heads=16, num_kv_heads=8, head_dim=128,
             max_seq_len=4096, rope_base=1e6, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False)


def build(precision: str, device: str, seed: int = 0) -> Decoder:
    model = Decoder(DecoderConfig(**SHAPE))
    init_weights(model, seed)
    model.to(device)
    apply_precision(model, precision)
    return model


def packed(rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, next-token targets and four segments a row, on the CUDA device."""
    tokens = torch.randint(0, SHAPE["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))
    segments = (torch.arange(length) * 4 // length).expand(rows, -1)
    targets = torch.cat([tokens[:, 1:], torch.full((rows, 1), -100)], dim=1)
    targets[:, :-1][segments[:, 1:] != segments[:, :-1]] = -100
    return tokens.cuda(), targets.cuda(), segments.contiguous().cuda()


def relative(a: Tensor, b: Tensor) -> float:
    """Frobenius norm of the difference over that of b."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def check_forward_matches_cpu() -> dict[str, object]:
    tokens, _, segments = packed(1, 256)
    with torch.inference_mode():
        ours = build("fp32", "cuda")(tokens, None, segments).cpu()
        reference = build("fp32", "cpu")(tokens.cpu(), None, segments.cpu())
    error = relative(ours, reference)
    return {"relative_error": error, "tolerance": 2e-3, "ok": error < 2e-3}


def check_isolation() -> dict[str, object]:
    tokens, _, segments = packed(1, 256)
    model = build("fp32", "cuda")
    with torch.inference_mode():
        before = model(tokens, None, segments)
        tokens[0, 3] = (tokens[0, 3] + 1) % SHAPE["vocab_size"]
        after = model(tokens, None, segments)
    moved = float((after - before)[0, 64:].abs().max())
    return {"largest_move_in_other_documents": moved, "tolerance": 1e-5, "ok": moved <= 1e-5}


def check_precision(precision: str, tolerance: float) -> dict[str, object]:
    """Loss and gradient of one packed batch against fp32 on the same device."""
    tokens, targets, segments = packed(4, 1024)
    grads, losses = {}, {}
    for name in ("fp32", precision):
        model = build(name, "cuda")
        loss, count = cross_entropy_sum(model(tokens, None, segments), targets)
        (loss / count).backward()
        losses[name] = float(loss) / count
        grads[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
    error, gap = relative(grads[precision], grads["fp32"]), abs(losses[precision] - losses["fp32"])
    return {"loss_gap": gap, "gradient_relative_error": error, "tolerance": tolerance, "ok": gap < 0.01 and error < tolerance}


def check_chunked_loss() -> dict[str, object]:
    tokens, targets, segments = packed(2, 512)
    model = build("fp32", "cuda")
    with torch.no_grad():
        hidden = model.hidden(tokens, None, segments)
        plain, _ = cross_entropy_sum(model.head(hidden), targets)
        chunked, _ = chunked_cross_entropy_sum(hidden, model.head_weight, targets, 256)
    gap = abs(float(plain) - float(chunked)) / float(plain)
    return {"relative_gap": gap, "tolerance": 1e-5, "ok": gap < 1e-5}


def check_training(precision: str, steps: int) -> dict[str, object]:
    """Overfit one batch: the loss must fall by half; reports tokens a second and peak memory."""
    model = build(precision, "cuda")
    optim = adamw(model, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens, targets, segments = packed(8, 1024)
    torch.cuda.reset_peak_memory_stats()
    losses, skipped, started = [], 0, 0.0
    for step in range(steps):
        if step == 3:
            torch.cuda.synchronize()
            started = time.monotonic()
        loss, count = cross_entropy_sum(model(tokens, None, segments), targets)
        (loss / count).backward()
        skipped += guarded_step(optim, list(model.parameters()), 1.0).skipped
        losses.append(float(loss) / count)
    torch.cuda.synchronize()
    rate = (steps - 3) * tokens.numel() / (time.monotonic() - started)
    return {"first_loss": losses[0], "last_loss": losses[-1], "skipped": skipped, "tokens_per_second": rate,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(), "ok": losses[-1] < losses[0] / 2 and skipped == 0}


def check_generation(rows: int, new_tokens: int) -> dict[str, object]:
    """Greedy tokens of the cached engine equal those of plain forward passes; reports tokens a second."""
    model = build("fp32", "cuda")
    prompts = [torch.randint(0, SHAPE["vocab_size"], (8 + i % 5,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(rows)]
    started = time.monotonic()
    answers = generate(model, prompts, max_new_tokens=new_tokens, temperature=0.0, eos_ids=[SHAPE["vocab_size"] - 1], seed=0, batch_size=rows)
    rate = sum(len(a[0].tokens) for a in answers) / (time.monotonic() - started)
    row, wrong = prompts[0], 0
    with torch.inference_mode():
        for token in answers[0][0].tokens:
            wrong += int(model(torch.tensor([row], device="cuda"))[0, -1].argmax()) != token
            row = [*row, token]
    return {"tokens_per_second": rate, "differing_greedy_tokens": wrong, "ok": wrong == 0}


def checks(quick: bool) -> dict[str, Callable[[], dict[str, object]]]:
    steps, rows = (20, 32) if quick else (60, 256)
    return {
        "forward_matches_cpu": check_forward_matches_cpu,
        "document_isolation": check_isolation,
        "bf16_gradient": lambda: check_precision("bf16", 0.05),
        "fp8_tensorwise_gradient": lambda: check_precision("fp8_tensorwise", 0.2),
        "chunked_loss": check_chunked_loss,
        "train_bf16": lambda: check_training("bf16", steps),
        "train_fp8_tensorwise": lambda: check_training("fp8_tensorwise", steps),
        "generation": lambda: check_generation(rows, 32),
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when every check passed, 1 when one failed, 2 without a device."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device on this machine; run this on one with a Hopper GPU\n")
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "checks": {}}
    for name, check in checks(args.quick).items():
        started = time.monotonic()
        try:
            found = check()
        except (RuntimeError, ValueError) as error:
            found = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        results["checks"][name] = {**found, "seconds": round(time.monotonic() - started, 2)}
        sys.stdout.write(f"{'ok  ' if found['ok'] else 'FAIL'} {name} {json.dumps(found)}\n")
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()
    return 0 if all(found["ok"] for found in results["checks"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
