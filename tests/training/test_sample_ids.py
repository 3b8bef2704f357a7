"""Ids of samples that a script's own batches carry."""

import random

import torch

from m5ws.records import sample_ids
from m5ws.training.dataloader import BatchDigest, Feed


def test_ids_of_batches_are_recorded_and_found() -> None:
    draw = random.Random(1)
    for kind in (int, str):
        for _ in range(50):
            ids = [draw.randrange(40) for _ in range(draw.randrange(1, 20))]
            batches = BatchDigest()
            for place in range(0, len(ids), 4):
                given = [kind(each) for each in ids[place : place + 4]]
                batches.add({"sample_ids": torch.tensor(given) if kind is int else given})
            text = batches.take_ids()["batch"]
            assert {each for each in range(45) if sample_ids.contains(text, str(each))} == set(ids)
            assert batches.take_ids() == {}
    assert sample_ids.format_ids([3, 4, 5, 9]) == "3-6,9-10"


def test_batches_without_ids_record_a_digest_alone() -> None:
    batches = BatchDigest()
    feed = Feed([torch.ones(2)], batches)
    feed.next()
    assert batches.take_ids() == {} and batches.take() is not None
    assert feed.take_consumed() == {} and feed.order() is None
