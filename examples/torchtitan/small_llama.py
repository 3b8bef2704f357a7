"""A configuration of torchtitan: a small Llama 3, whose tokens are bytes."""

from dataclasses import dataclass
from pathlib import Path

import yaml
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.models.llama3.config_registry import llama3_debugmodel


class ByteTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()
        self.eos_id = 257

    def encode(self, text, add_bos=True, add_eos=True):
        return [256] * add_bos + list(text.encode()) + [self.eos_id] * add_eos

    def decode(self, ids):
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def get_vocab_size(self):
        return 258


class Attention(ScaledDotProductAttention):
    """Causal attention, also across the texts of a sequence: FlexAttention has no backward pass on a CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        pass

    # torchtitan finds these arguments by their names.
    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, **settings):  # noqa: N803
        return super().forward(q_BLNH, k_BLNH, v_BLNH, **settings)


def parallelize(model, **settings):
    """Apply FSDP2 with sums in collectives, because gloo has no others."""
    model = parallelize_llama(model, **settings)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def small_llama():
    own = yaml.safe_load(Path("config.yaml").read_text())
    config = llama3_debugmodel()
    config.model_spec = model_registry("debugmodel")
    config.model_spec.parallelize_fn = parallelize
    model = config.model_spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = 258
    model.layers = model.layers[:1]
    model.layers[0].attention.inner_attention = Attention.Config()
    config.loss = CrossEntropyLoss.Config(global_vocab_size=258)
    config.tokenizer = ByteTokenizer.Config()
    config.dataloader.dataset_path = "data"
    config.optimizer = default_adamw(lr=own["learning_rate"])
    config.training.steps = own["steps"]
    config.training.seq_len = 32
    config.training.mixed_precision_param = "float32"
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    config.validator.enable = False
    config.checkpoint.enable = True
    config.checkpoint.interval = 4
    config.debug.seed = 1
    config.dump_folder = "out"
    return config
