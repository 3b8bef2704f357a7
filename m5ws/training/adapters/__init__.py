"""Adapters: a framework's own loop as a session, by one visible line in the script.

Outside `m5ws run` the line changes nothing. No framework is imported before its adapter is called.
"""

from m5ws.training.adapters.accelerate_loop import accelerate as accelerate
from m5ws.training.adapters.hugging_face import transformers as transformers
from m5ws.training.adapters.lightning_callback import lightning as lightning

__all__ = ["accelerate", "lightning", "transformers"]
