"""DuoAttention: one gate per KV head, learned by distillation (arXiv 2410.10819), scaled down.

    output of a head = alpha full attention + (1 - alpha) attention on sinks and recent tokens
    loss = |H_mixed - H_full|^2 / |H_full|^2 at the answer tokens + 0.05 mean alpha

H is the last hidden state, alpha starts at 1 and is clamped to [0, 1] after each step; AdamW's plain Adam
at 0.02. Differences from the paper, all to fit a small machine: prompts of about 500 tokens with four
hidden sentences instead of 1k to 32k with ten passkeys; 16 sinks and 64 recent tokens instead of 128 and
256; 150 steps instead of 2,000; a relative error, so that one weight of the second term suits every
model. The document is read with full attention, and mixed heads start with the question: that is how
the method is used here (evict after the prompt), and it lets a document be read once for all steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvviz.calibrate.job import Job
from kvviz.calibrate.reading import plain_prompt
from kvviz.calibrate.texts import FACTS
from kvviz.engine.attention import hidden_attention
from kvviz.engine.forward import forward
from kvviz.engine.trace import Trace, prefill

LENGTH = 500
PROMPTS = 8
SINKS, RECENT = 16, 64
RATE, WEIGHT = 0.02, 0.05
_EVERY = 25  # steps between checkpoints


def run(job: Job) -> tuple[dict[str, torch.Tensor], dict]:
    model = job.model
    gates = torch.ones(model.n_layers, model.n_kv_heads)
    path, losses, done = torch.zeros_like(gates), [], 0
    optimiser = torch.optim.Adam([gates.requires_grad_()], lr=RATE)
    kept = job.kept()
    if kept is not None:
        state, plain = kept
        with torch.no_grad():
            gates.copy_(state["gates"])
        path, losses, done = state["path"], plain["losses"], plain["done"]
        optimiser.state[gates] = {k: state[k] for k in ("step", "exp_avg", "exp_avg_sq")}
    prompts = []
    for number in range(min(PROMPTS, job.steps)):
        job.say(f"Reading prompt {number + 1} of {min(PROMPTS, job.steps)}", 0.2 * number / PROMPTS)
        prompts.append(_Prompt(job, number))
    for step in range(done, job.steps):
        optimiser.zero_grad()
        error = prompts[step % len(prompts)].error(gates)
        loss = error + WEIGHT * gates.mean()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
            path += gates / job.steps
        losses.append([round(float(error.detach()), 5), round(float(gates.detach().mean()), 4)])
        if (step + 1) % _EVERY == 0:
            held = {k: optimiser.state[gates][k] for k in ("step", "exp_avg", "exp_avg_sq")}
            job.keep({"gates": gates, "path": path, **held}, {"losses": losses, "done": step + 1})
        message = f"Step {step + 1} of {job.steps}, error {losses[-1][0]:.4f}, mean gate {losses[-1][1]:.2f}"
        job.say(message, 0.2 + 0.8 * (step + 1) / job.steps)
    return {"gates": gates.detach(), "path": path.clamp(0, 1)}, {
        "losses": {"error and mean gate, first and last steps": [losses[0], *losses[-len(prompts) :]]},
        "prompts": len(prompts),
        "sinks": SINKS,
        "recent": RECENT,
        "variant": "optimised on the question and answer after a full reading of the document",
    }


class _Prompt:
    """One document with four facts, read once, and the questions and answers that follow it."""

    def __init__(self, job: Job, number: int):
        self.model = job.model
        document, _ = job.texts.document(job.model, LENGTH, number, job.seed)
        facts = [FACTS[(number + 2 * k) % len(FACTS)] for k in range(4)]
        sentences = document.split(". ")
        for k, fact in enumerate(facts[1:], 1):  # the first stands there already
            sentences.insert(1 + (len(sentences) - 1) * k // 4, fact[0].rstrip("."))
        order = [facts[(number + k) % 4] for k in range(4)]
        encode = self._encode
        ids = encode(". ".join(sentences))
        self.answers: list[int] = []
        n = len(ids)
        for _, question, answer in order:
            ids = ids + encode(f"\n\n{question}\n")
            start = len(ids) - n
            ids = ids + encode(answer)
            self.answers += range(start, len(ids) - n)
        self.ids = torch.tensor(ids[n:], dtype=torch.long)
        self.trace: Trace = prefill(self.model, plain_prompt(self.model, torch.tensor(ids), n))
        self.masks = [self._masks(index) for index in range(self.model.n_layers)]
        with torch.no_grad():
            self.full = self._hidden(torch.ones(self.model.n_layers, self.model.n_kv_heads), False)

    def _encode(self, text: str) -> list[int]:
        return self.model.tokenizer(text, add_special_tokens=False)["input_ids"]

    def error(self, gates: torch.Tensor) -> torch.Tensor:
        return (self._hidden(gates, True) - self.full).square().sum() / self.full.square().sum()

    def _masks(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What full and streaming heads see: bool [T, n + T] twice."""
        n, t = self.trace.n, len(self.ids)
        query, key = torch.arange(n, n + t)[:, None], torch.arange(n + t)
        seen = key <= query
        window = self.model.layer(index).window
        if window is not None:
            seen = seen & (key > query - window)
        return seen, seen & ((key < SINKS) | (key > query - RECENT))

    def _hidden(self, gates: torch.Tensor, gradients: bool) -> torch.Tensor:
        """Last hidden states at the answer tokens, float32 [A, D]."""
        model, seen = self.model, []

        def attend(index, query, key, value):
            layer = model.layer(index)
            keys = torch.cat([self.trace.keys[index], key[0]], 1)[None]
            values = torch.cat([self.trace.values[index], value[0]], 1)[None]
            full, stream = (self._attention(layer, query, keys, values, m) for m in self.masks[index])
            alpha = gates[index].to(full.device).repeat_interleave(model.group)[None, :, None, None]
            return (alpha * full + (1 - alpha) * stream).to(query.dtype)

        handle = model.decoder.norm.register_forward_hook(lambda module, args, out: seen.append(out))
        try:
            positions = torch.arange(self.trace.n, self.trace.n + len(self.ids))[None]
            forward(model, self.ids[None], positions, attend, logits_to_keep=1, gradients=gradients)
        finally:
            handle.remove()
        return seen[0][0, self.answers].float()

    @staticmethod
    def _attention(layer, query, keys, values, mask) -> torch.Tensor:
        mask = mask.to(query.device)
        if layer.sinks is None:
            return F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=layer.scaling, enable_gqa=True
            )
        return hidden_attention(query, keys, values, layer, ~mask).to(query.dtype)
