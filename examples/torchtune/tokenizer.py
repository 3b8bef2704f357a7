"""A tokenizer that needs no file: a token is a byte."""


class ByteTokenizer:
    bos_id, eos_id, pad_id = 256, 257, 258

    def __init__(self, max_seq_len):
        self.max_seq_len = max_seq_len

    def encode(self, text, add_bos=True, add_eos=True):
        return [self.bos_id] * add_bos + list(text.encode()) + [self.eos_id] * add_eos
