"""Pretrain with JAX on one process. Stop at any time, and resume.

python examples/train_jax.py s3://bucket/corpus --steps 300
python examples/train_jax.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tiny_gpt import parse_arguments

from cloudload import CloudLoader

Weights = dict[str, jax.Array]


def forward(weights: Weights, input_ids: jax.Array) -> jax.Array:
    """Predict each token from the mean of the tokens before it."""
    embedded = weights["embed"][input_ids]
    counts = jnp.arange(1, input_ids.shape[1] + 1)[:, None]
    hidden = jax.nn.gelu(embedded.cumsum(1) / counts @ weights["hidden"])
    return hidden @ weights["embed"].T


def sum_losses(weights: Weights, input_ids: jax.Array, labels: jax.Array) -> jax.Array:
    """The sum of the losses of all trained tokens."""
    targets = labels[:, 1:]
    scores = jax.nn.log_softmax(forward(weights, input_ids)[:, :-1])
    losses = -jnp.take_along_axis(scores, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(targets >= 0, losses, 0).sum()


def update(
    weights: Weights, batch: dict[str, Any], num_tokens: int, rate: float
) -> tuple[Weights, jax.Array]:
    total, gradients = jax.value_and_grad(sum_losses)(weights, batch["input_ids"], batch["labels"])
    updated = {
        name: weight - rate * gradients[name] / num_tokens for name, weight in weights.items()
    }
    return updated, total / num_tokens


train_step = jax.jit(update)


def main() -> None:
    args = parse_arguments(__doc__)
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch,
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        start_method="forkserver",  # JAX has threads, with which a fork may hang
    )
    keys, size = jax.random.split(jax.random.key(args.seed)), (loader.vocab_size, args.width)
    weights: Weights = {
        "embed": 0.2 * jax.random.normal(keys[0], size),
        "hidden": jax.random.normal(keys[1], (args.width, args.width)) / args.width**0.5,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    step = 0
    if args.resume:
        saved = np.load(args.out / "checkpoint.npz")
        weights = {name: jnp.asarray(saved[name]) for name in weights}
        loader.load_state_dict(json.loads(str(saved["loader"])))
        step = int(saved["step"])
    with loader:
        for batch in loader.take(args.steps - step):
            weights, loss = train_step(
                weights, batch.numpy(), batch.num_trained_tokens, 100 * args.lr
            )
            step += 1
            if step % args.save_every == 0:
                state = json.dumps(loader.state_dict())
                np.savez(args.out / "new.npz", **weights, loader=state, step=step)
                (args.out / "new.npz").replace(args.out / "checkpoint.npz")
            if step % 10 == 0:
                print(f"step {step}  loss {loss:.3f}  {loader.stats().tokens:,} tokens", flush=True)


if __name__ == "__main__":
    main()
