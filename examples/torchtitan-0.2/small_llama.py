"""A model for torchtitan 0.2: a small Llama 3, whose tokens are bytes of the texts in `data`."""

from datasets import load_dataset
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec, parallelize_llama
from torchtitan.protocols.train_spec import register_train_spec


class ByteTokenizer(BaseTokenizer):
    def __init__(self, config):
        super().__init__()
        self.eos_id = 257

    def encode(self, text, add_bos=True, add_eos=True):
        return [256] * add_bos + list(text.encode()) + [self.eos_id] * add_eos

    def decode(self, ids):
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def get_vocab_size(self):
        return 258


def parallelize(model, parallel_dims, config):
    """Apply FSDP2 with sums in collectives, because gloo has no others."""
    model = parallelize_llama(model, parallel_dims, config)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


DATASETS["text"] = DatasetConfig("data", lambda path: load_dataset(path, split="train"), lambda row: row["text"])
spec = get_train_spec()
spec.model_args = {"small": TransformerModelArgs(dim=64, n_layers=1, n_heads=4, vocab_size=258)}
spec.parallelize_fn = parallelize
spec.build_tokenizer_fn = ByteTokenizer
register_train_spec("small_llama", spec)
