"""A training script in the style of a Trainer: keyword batches, losses inside of the model, hooks.

512 images an update, by gradient accumulation over 16 micro-batches, with warmup by update. It
deviates in what micro-batches do to BN's running average, and as its command line says.
"""

import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

MISTAKES = set(sys.argv[1:])
BATCH, ACCUMULATION, EXAMPLES, EPOCHS = 32, 16, 1024, 2
STEPS = EXAMPLES // BATCH // ACCUMULATION


class Images(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        image = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(index))
        return {"pixel_values": image, "labels": index % 4}


class Criterion(nn.Module):
    """As timm's LabelSmoothingCrossEntropy: it calls no loss function of torch."""

    def forward(self, logits, labels):
        return -logits.log_softmax(1).gather(1, labels[:, None]).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.classifier = nn.Linear(16, 4)
        nn.init.kaiming_normal_(self.body[0].weight, mode="fan_out")
        nn.init.zeros_(self.body[0].bias)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1 if "smoothing" in MISTAKES else 0.0)
        if "criterion" in MISTAKES:
            self.loss = Criterion()

    def forward(self, pixel_values, labels):
        logits = self.classifier(self.body(pixel_values))
        return {"loss": self.loss(logits, labels), "logits": logits}


class WrappedOptimizer(torch.optim.Optimizer):
    """As those of accelerate: an optimizer that holds the one which it steps."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self.__dict__["optimizer"], name)

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def factor(step):
    """The lr by the reference's 0.1: to 0.2 over five epochs."""
    if "no_warmup" in MISTAKES:
        return 1.0
    if "warmup_by_epoch" in MISTAKES:
        step = step // STEPS * STEPS
    share = min(1.0, step / (5 * STEPS))
    return share if "warmup_from_0" in MISTAKES else 0.5 + 0.5 * share


class Trainer:
    def __init__(self, model):
        self.model = model
        norms = list(model.body[1].parameters())
        groups = [
            {"params": [p for p in model.parameters() if all(p is not each for each in norms)]},
            {"params": norms, "weight_decay": 0.0},
        ]
        sgd = torch.optim.SGD(groups, 0.2, momentum=0.9, weight_decay=1e-4, nesterov=True)
        self.scheduler = LambdaLR(sgd, factor)
        self.optimizer = WrappedOptimizer(sgd)

    def training_step(self, batch):
        with torch.autocast("cpu", torch.bfloat16) if "bf16" in MISTAKES else nullcontext():
            loss = self.model(**batch)["loss"]
        if "undivided" not in MISTAKES:
            loss = loss / ACCUMULATION
        loss.backward()
        return loss.detach()

    def train_by_closures(self, loader):
        """As Lightning's Trainer does: each step of the optimizer computes its own gradients."""

        def closure():
            self.optimizer.zero_grad()
            losses = [self.training_step(next(batches)) for _ in range(ACCUMULATION)]
            return sum(losses)

        for _ in range(EPOCHS):
            batches = iter(loader)
            for _ in range(STEPS):
                self.optimizer.step(closure)
                self.scheduler.step()

    def train(self, loader):
        self.model.train()
        if "closures" in MISTAKES:
            self.train_by_closures(loader)
            return
        for _ in range(EPOCHS):
            for number, batch in enumerate(loader, start=1):
                self.training_step(batch)
                if number % ACCUMULATION == 0:
                    if {"clip", "norm"} & MISTAKES:
                        limit = 0.05 if "clip" in MISTAKES else float("inf")
                        nn.utils.clip_grad_norm_(self.model.parameters(), limit)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
        if "own_average" in MISTAKES:
            torch.optim.swa_utils.AveragedModel(self.model).update_parameters(self.model)


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(Model()).train(DataLoader(Images(), BATCH, shuffle=True, drop_last=True))
