"""Hugging Face's Trainer as its users call it: a tiny GPT-2, evaluations, checkpoints, TensorBoard."""

import os
import signal
from pathlib import Path

import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainerState, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, seed: int, count: int) -> None:
        self.rows = torch.randint(64, (count, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Die(TrainerCallback):
    """Kill the process once, while the file is there that a test makes."""

    def on_step_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        mark = Path(os.environ.get("DIE", "/nonexistent"))
        if state.global_step == 10 and mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


config = yaml.safe_load(Path("config.yaml").read_text())
args = TrainingArguments(
    output_dir="out",
    learning_rate=config["learning_rate"],
    max_steps=config["steps"],
    per_device_train_batch_size=4,
    warmup_steps=2,
    logging_steps=2,
    eval_strategy="steps",
    eval_steps=4,
    save_steps=4,
    report_to="tensorboard",
    use_cpu=True,
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
trainer = Trainer(model=model, args=args, train_dataset=Tokens(1, 64), eval_dataset=Tokens(2, 8), callbacks=[Die()])
result = trainer.train()
trainer.save_model()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
trainer.save_metrics("eval", trainer.evaluate())
