#!/usr/bin/env python3
"""Makes tests/trainer/fixtures/models.h5: tiny models in float64 with their loss and gradients.

The models are written here from their definitions, with PyTorch's own operations and its automatic
differentiation; nothing of this project is used. Needs torch, numpy and h5py:

    python tools/make_model_fixture.py tests/trainer/fixtures/models.h5

Each case is a group with attributes (the sizes), `tokens` and `targets` [samples, seq] int32 (target
-1: not scored), `losses` [samples, seq], and `weights/LAYER/NAME`, `gradients/LAYER/NAME`, the
gradient of the sum of losses. Matrices are [out, in]; query, key and value rows follow each other in
`qkv`, gate and up rows in `gate_up`.

    llama  Touvron et al., "LLaMA" (2023): RMSNorm, rotary positions (halves paired), SwiGLU
    gpt2   Radford et al. (2019): LayerNorm, learned positions, GELU (exact)
"""

import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F

CASES = {
    "llama_tied": dict(style="llama", tied=1, bias=0, kv_heads=2),
    "llama_untied": dict(style="llama", tied=0, bias=0, kv_heads=4),
    "gpt2_tied": dict(style="gpt2", tied=1, bias=1, kv_heads=4),
    "gpt2_untied": dict(style="gpt2", tied=0, bias=0, kv_heads=1),
}
SIZES = dict(layers=2, width=16, heads=4, ffn_width=10, vocab=11, context=9)
SAMPLES, SEQ = 2, 9
EPS, ROPE_BASE = 1e-5, 10000.0


def make_weights(case):
    """Name -> tensor; deviations large enough that every path matters."""
    w, d = SIZES["width"], SIZES["width"] // SIZES["heads"]
    shapes = {"embedding/table": (SIZES["vocab"], w)}
    gpt2 = case["style"] == "gpt2"
    if gpt2:
        shapes["embedding/positions"] = (SIZES["context"], w)

    def linear(layer, name, out, inner):
        shapes[f"{layer}/{name}"] = (out, inner)
        if case["bias"]:
            shapes[f"{layer}/{name}_bias"] = (out,)

    def norm(layer, name):
        shapes[f"{layer}/{name}"] = (w,)
        if case["bias"]:
            shapes[f"{layer}/{name}_bias"] = (w,)

    for i in range(SIZES["layers"]):
        layer = f"layer {i}"
        norm(layer, "norm1")
        linear(layer, "qkv", (SIZES["heads"] + 2 * case["kv_heads"]) * d, w)
        linear(layer, "out", w, w)
        norm(layer, "norm2")
        if gpt2:
            linear(layer, "up", SIZES["ffn_width"], w)
        else:
            linear(layer, "gate_up", 2 * SIZES["ffn_width"], w)
        linear(layer, "down", w, SIZES["ffn_width"])
    norm("head", "norm")
    if not case["tied"]:
        shapes["head/table"] = (SIZES["vocab"], w)

    weights = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, dtype=torch.float64) * 0.4
        if "norm" in name and not name.endswith("_bias"):
            x = 1 + x
        weights[name] = x.requires_grad_(True)
    return weights


def rotary(x):
    """x [samples, heads, seq, d]: complex rotation of (x[c], x[c + d/2]) by position / base^(2c/d)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    rates = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def losses_of(case, weights, tokens, targets):
    width, heads, kv_heads = SIZES["width"], SIZES["heads"], case["kv_heads"]
    d = width // heads
    gpt2 = case["style"] == "gpt2"
    layer = None

    def norm(x, name):
        if gpt2:
            bias = weights.get(f"{name}_bias")
            return F.layer_norm(x, (width,), weights[name], bias, EPS)
        return F.rms_norm(x, (width,), weights[name], EPS)

    def linear(x, name):
        return F.linear(x, weights[f"{layer}/{name}"], weights.get(f"{layer}/{name}_bias"))

    def split(x, count):
        return x.view(SAMPLES, SEQ, count, d).transpose(1, 2)

    x = weights["embedding/table"][tokens]
    if gpt2:
        x = x + weights["embedding/positions"][torch.arange(SEQ)]
    for i in range(SIZES["layers"]):
        layer = f"layer {i}"
        q, k, v = linear(norm(x, f"{layer}/norm1"), "qkv").split(
            [heads * d, kv_heads * d, kv_heads * d], dim=-1)
        q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
        if not gpt2:
            q, k = rotary(q), rotary(k)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(o.transpose(1, 2).reshape(SAMPLES, SEQ, width), "out")
        h = norm(x, f"{layer}/norm2")
        if gpt2:
            h = F.gelu(linear(h, "up"))
        else:
            gate, up = linear(h, "gate_up").chunk(2, dim=-1)
            h = F.silu(gate) * up
        x = x + linear(h, "down")
    table = weights["embedding/table" if case["tied"] else "head/table"]
    logits = norm(x, "head/norm") @ table.T
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1,
                           reduction="none")
    return flat.view(SAMPLES, SEQ)


def main():
    torch.manual_seed(20)
    with h5py.File(sys.argv[1], "w") as out:
        for name, case in CASES.items():
            weights = make_weights(case)
            tokens = torch.randint(SIZES["vocab"], (SAMPLES, SEQ))
            targets = torch.randint(SIZES["vocab"], (SAMPLES, SEQ))
            targets[0, 2] = targets[1, 8] = -1
            losses = losses_of(case, weights, tokens, targets)
            losses.sum().backward()

            group = out.create_group(name)
            for key, value in {**SIZES, **case}.items():
                group.attrs[key] = value
            group["tokens"] = tokens.numpy().astype(np.int32)
            group["targets"] = targets.numpy().astype(np.int32)
            group["losses"] = losses.detach().numpy()
            for key, value in weights.items():
                group[f"weights/{key}"] = value.detach().numpy()
                group[f"gradients/{key}"] = value.grad.numpy()


if __name__ == "__main__":
    main()
