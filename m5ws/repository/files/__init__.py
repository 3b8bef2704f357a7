"""Files and trees: reading, chunking, packing, materialising."""
