"""A small GPT in the style of nanoGPT: one file, get_batch, out/ckpt.pt, init_from = "scratch" or "resume"."""

import os

import numpy as np
import torch
import yaml
from torch.nn import functional as F

# -----------------------------------------------------------------------------
out_dir = "out"
eval_interval = 4
eval_iters = 2
batch_size = 8
block_size = 16
n_embd = 16
n_head = 2
dropout = 0.1
learning_rate = 1e-3
steps = 12
globals().update(yaml.safe_load(open("config.yaml")))
init_from = "resume" if os.path.exists(f"{out_dir}/ckpt.pt") else "scratch"
# -----------------------------------------------------------------------------

torch.manual_seed(1337)
text = np.frombuffer(open("text.txt", "rb").read(), dtype=np.uint8).astype(np.int64)
data = {"train": torch.from_numpy(text[:1100]), "val": torch.from_numpy(text[1100:])}


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(256, n_embd)
        self.wpe = torch.nn.Embedding(block_size, n_embd)
        self.block = torch.nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout, batch_first=True)
        self.lm_head = torch.nn.Linear(n_embd, 256, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(block_size))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(block_size)
        logits = self.lm_head(self.block(x, src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, 256), targets.view(-1))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num = 0
if init_from == "resume":
    checkpoint = torch.load(f"{out_dir}/ckpt.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = {split: torch.stack([model(*get_batch(split))[1] for _ in range(eval_iters)]).mean() for split in data}
    model.train()
    return losses


def save_checkpoint():
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, f"{out_dir}/ckpt.tmp"
    )
    os.replace(f"{out_dir}/ckpt.tmp", f"{out_dir}/ckpt.pt")


os.makedirs(out_dir, exist_ok=True)
while iter_num < steps:
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        save_checkpoint()
    logits, loss = model(*get_batch("train"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
save_checkpoint()
