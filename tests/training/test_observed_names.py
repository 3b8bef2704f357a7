"""A later attempt gives modules and optimizers the labels that they had, in whatever order it calls them."""

import itertools

import torch

from m5ws.training.observation.names import Names

Parts = dict[str, torch.nn.Module | torch.optim.Optimizer]


def make() -> Parts:
    """Return a model with two equal heads, another model, and their optimizers."""
    body, heads, other = torch.nn.Linear(4, 2), [torch.nn.Linear(2, 2) for _ in range(2)], torch.nn.Linear(5, 5)
    trained = [*body.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    return {
        "optimizer of the body": torch.optim.SGD(trained, lr=0.1),
        "optimizer of the other model": torch.optim.SGD(other.parameters(), lr=0.1),
        "body": body,
        "head": heads[0],
        "second head": heads[1],
        "other": other,
    }


def label(names: Names, part: torch.nn.Module | torch.optim.Optimizer) -> str | None:
    return names.optimizer(part) if isinstance(part, torch.optim.Optimizer) else names.module(part)


def test_labels_do_not_depend_on_the_order_of_calls() -> None:
    first, parts = Names(), make()
    labels = {name: label(first, part) for name, part in parts.items()}
    assert len(set(labels.values())) == len(parts)
    optimizers = [name for name in parts if name.startswith("optimizer")]
    modules = [name for name in parts if name not in optimizers]
    # A module gets its label in an update, when its optimizer has one.
    for orders in itertools.product(itertools.permutations(optimizers), itertools.permutations(modules)):
        later, again = Names(first.new.copy), make()
        assert {name: label(later, again[name]) for order in orders for name in order} == labels


def test_a_new_object_and_an_ambiguous_object_get_new_labels() -> None:
    first = Names()
    twins = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    assert [first.module(twin) for twin in twins] == ["model", "model2"]
    later = Names(first.new.copy)
    assert later.module(torch.nn.Linear(3, 3)) == "model3"
    assert later.module(twins[1]) == "model4"


def test_an_optimizer_keeps_its_label_when_groups_are_added() -> None:
    parts = torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)
    names, optimizer = Names(), torch.optim.AdamW(parts[0].parameters())
    assert names.optimizer(optimizer) == "optimizer"
    optimizer.add_param_group({"params": list(parts[1].parameters())})
    again = torch.optim.AdamW([{"params": list(part.parameters())} for part in parts])
    assert names.optimizer(optimizer) == Names(names.new.copy).optimizer(again) == "optimizer"
