"""A training script in the style of pytorch/examples' imagenet/main.py, on made-up images.

It follows every rule that can be seen, but for the mistakes that its command line names.
"""

import gc
import os
import sys
from copy import deepcopy
from functools import singledispatch
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Subset

MISTAKES = set(sys.argv[1:])
N, EXAMPLES, CLASSES, EPOCHS = 32, 144, 10, 3


class Shard(BatchSampler):
    """As Accelerate's: it holds the batch sampler, a part of whose batches it has."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        yield from self.batch_sampler


class Accelerator:
    """As Accelerate's: it leaves out what its evaluation loader has repeated."""

    def gather_for_metrics(self, values):
        return values


if "gathered" in MISTAKES:
    sys.modules["accelerate.accelerator"] = SimpleNamespace(Accelerator=Accelerator)


class Engine(nn.Module):
    """As DeepSpeed's: only the network inside has modes; its optimizer has a flat copy of it."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.flat = parameters_to_vector(module.parameters()).detach()

    def forward(self, x):
        return self.module(x)

    def train(self, mode=True):
        self.module.train(mode)

    def step(self, optimizer):
        parameters = list(self.module.parameters())
        DEEPSPEED.clip_grad_norm_(parameters=parameters, max_norm=1.0)
        self.flat.grad = parameters_to_vector(each.grad for each in parameters)
        for each in parameters:
            each.grad = None
        optimizer.step()
        vector_to_parameters(self.flat.clone(), parameters)


DEEPSPEED = SimpleNamespace(
    clip_grad_norm_=lambda **its: nn.utils.get_total_norm(its["parameters"])
)
if "engine" in MISTAKES:
    sys.modules["deepspeed.runtime.engine"] = DEEPSPEED


class Noise:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)


class Images(Dataset):
    def __init__(self, count, train):
        self.count, self.train = count, train
        self.generator = torch.Generator().manual_seed(0)
        self.transforms = [Noise()]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        if self.train:
            own = self.generator if "one_stream" in MISTAKES else None
            if "transforms_stream" in MISTAKES:
                own = self.transforms[0].generator
            image += 0.1 * torch.randn(1, generator=own)
        return image, index % CLASSES


class BasicBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, momentum=0.01 if "bn_momentum" in MISTAKES else 0.1)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.block = BasicBlock(8)
        self.fc = nn.Linear(8, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and "conv_init" not in MISTAKES:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if "last_gamma" not in MISTAKES:
            nn.init.zeros_(self.block.bn2.weight)
        if "head" not in MISTAKES:
            nn.init.normal_(self.fc.weight, std=0.01)
            nn.init.zeros_(self.fc.bias)

        if "inner_average" in MISTAKES:
            self.average = deepcopy(self)

    def forward(self, x):
        return self.fc(self.block(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


def make_optimizer(model, workers):
    lr = 0.1 * N * workers / 256
    if "no_scaling" in MISTAKES:
        lr = 0.1
    norms, others = [], []
    for name, module in model.named_modules():
        if name.startswith("average"):
            continue
        own = list(module.parameters(recurse=False))
        is_norm = isinstance(module, nn.BatchNorm2d) and "decayed_norms" not in MISTAKES
        (norms if is_norm else others).extend(own)
    if "frozen" in MISTAKES:
        others = [each for each in others if each is not model.fc.bias]
    groups = [{"params": others, "weight_decay": 1e-4}, {"params": norms, "weight_decay": 0}]
    if "adam" in MISTAKES:
        return torch.optim.Adam(groups, lr=lr)
    return torch.optim.SGD(groups, lr, momentum=0.9, nesterov="no_nesterov" not in MISTAKES)


def train(loader, model, optimizer, epoch, scaler, steps):
    last = 0 if "left_in_eval" in MISTAKES else 1 if "left_in_eval_late" in MISTAKES else EPOCHS
    if epoch <= last:
        model.train()
    for i, (images, target) in enumerate(loader):
        reduction = "sum" if "sum_loss" in MISTAKES else "mean"
        loss = F.cross_entropy(model(images), target, reduction=reduction)
        if "undivided" not in MISTAKES:
            loss = loss / steps
        if "multiplied" in MISTAKES:
            loss = loss * dist.get_world_size()
        scaler.scale(loss).backward()
        if (i + 1) % steps:
            continue
        if "clip_before_unscale" in MISTAKES:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if "by_hand" in MISTAKES:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if "engine" in MISTAKES:
            model.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        if "no_zero_grad" not in MISTAKES:
            optimizer.zero_grad()
        print(f"loss {loss.item()!r}", flush=True)


def validate(loader, model):
    if "no_eval" not in MISTAKES:
        model.eval()
    with torch.set_grad_enabled("eval_grad" in MISTAKES):
        return sum((model(images).argmax(1) == target).sum() for images, target in loader)


def main():
    torch.manual_seed(int(os.environ.get("RANK", 0)) if "own_seeds" in MISTAKES else 0)
    workers = int(os.environ.get("WORLD_SIZE", 1))
    if workers > 1:
        dist.init_process_group("gloo")
    model = Network()
    if "sync_norm" in MISTAKES:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    steps = 2 if {"accumulate", "undivided"} & MISTAKES else 1
    optimizer = make_optimizer(model, workers * steps)
    wrapped = model
    if workers > 1 and not {"no_ddp", "by_hand"} & MISTAKES:
        wrapped = DistributedDataParallel(model)
    if "engine" in MISTAKES:
        model = wrapped = Engine(model)
        optimizer = torch.optim.SGD([model.flat], 0.0125, 0.9, weight_decay=1e-4, nesterov=True)
    if "compiled" in MISTAKES:
        model.compile(backend="eager")
    torch.manual_seed(1 + int(os.environ.get("RANK", 0)) * ("equal_seeds" not in MISTAKES))
    training = Images(EXAMPLES * workers, train=True)
    validation = Images(51, train=False)
    sampler = None
    if workers > 1 and "no_sampler" not in MISTAKES:
        sampler = DistributedSampler(training)
    forks = 2 if {"one_stream", "transforms_stream"} & MISTAKES else 0
    loader = DataLoader(
        training, N, shuffle=sampler is None and "not_shuffled" not in MISTAKES, sampler=sampler,
        drop_last="tail" not in MISTAKES, num_workers=forks,
    )  # fmt: skip
    if "made_anew" in MISTAKES:
        # By a library, as Accelerate and Lightning do: here it is functools.
        loader = singledispatch(DataLoader)(
            training, N, shuffle=True, drop_last="tail" not in MISTAKES
        )
    if "shard" in MISTAKES:
        loader = DataLoader(training, batch_sampler=Shard(loader.batch_sampler))
    part = None
    if {"padded", "remainder"} & MISTAKES:
        part = DistributedSampler(validation, shuffle=False, drop_last="remainder" in MISTAKES)
    val_loader = DataLoader(validation, 16, sampler=part, drop_last="val_tail" in MISTAKES)
    scaled = {"clip_before_unscale", "overflow"} & MISTAKES
    scale = 2.0**127 if "overflow" in MISTAKES else 1024.0
    scaler = torch.amp.GradScaler("cpu", enabled=bool(scaled), init_scale=scale)
    for epoch in range(EPOCHS):
        if sampler is not None and "no_set_epoch" not in MISTAKES:
            sampler.set_epoch(epoch)
        train(loader, wrapped, optimizer, epoch, scaler, steps)
        correct = validate(val_loader, model)
        Accelerator().gather_for_metrics(correct)
        if "remainder" in MISTAKES:
            validate(DataLoader(Subset(validation, [50])), model)
    # The wrapper's reducer must not be the last owner of the process group: torch would then join
    # gloo's threads while it holds the GIL for which they may wait. The wrapper is part of a cycle.
    del wrapped
    gc.collect()
    if workers > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
