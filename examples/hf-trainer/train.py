"""A tiny Llama, trained from scratch on the bytes of a text with Hugging Face's Trainer."""

from pathlib import Path

import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import m5ws


class Text(torch.utils.data.Dataset):
    def __init__(self, text: bytes, length: int = 16) -> None:
        self.tokens = torch.tensor(list(text))
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> dict:
        row = self.tokens[index * self.length : (index + 1) * self.length]
        return {"input_ids": row, "labels": row}


config = yaml.safe_load(Path("config.yaml").read_text())
text = Path("text.txt").read_bytes()
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=0.1,
    )
)
args = TrainingArguments(
    output_dir="out",
    learning_rate=config["learning_rate"],
    max_steps=config["steps"],
    per_device_train_batch_size=16,
    warmup_steps=2,
    logging_steps=2,
    eval_strategy="steps",
    eval_steps=4,
    save_steps=4,
    report_to="tensorboard",
    use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Text(text[:1200]), eval_dataset=Text(text[1200:]))
result = trainer.train(resume_from_checkpoint=m5ws.adapters.transformers(trainer))
trainer.save_model()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
trainer.save_metrics("eval", trainer.evaluate())
