"""DeepSpeed: engines, ZeRO checkpoints, the CPU optimizer."""
