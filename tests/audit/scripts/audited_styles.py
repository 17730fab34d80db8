"""A training script in one of the styles that scripts have, as its command line says.

Three epochs of four updates of 32 images. It follows all rules but for what its style deviates in.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Sampler

STYLE = sys.argv[1]
BATCH, LR = 32, 0.0125


class Images(Dataset):
    def __init__(self, count=128):
        torch.manual_seed(0)
        self.images, self.labels = torch.randn(count, 3, 6, 6), torch.arange(count) % 4

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Network(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.fc = nn.Linear(width, 4)
        for each in (self.conv, self.second):
            nn.init.kaiming_normal_(each.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images):
        maps = F.relu(self.bn(self.conv(images)))
        if STYLE == "checkpointing":
            maps = F.relu(checkpoint(self.second, maps, use_reentrant=True))
            maps = checkpoint(self.second, maps, use_reentrant=True)
        else:
            maps = self.second(maps)
        return self.fc(F.relu(maps).mean((2, 3)))


class Keywords(Network):
    """As those of Hugging Face: the images are an argument by name, and the loss is inside."""

    def forward(self, *, images, labels):
        return F.cross_entropy(super().forward(images), labels)


class Endless(Sampler):
    """As Detectron's: one permutation after the other."""

    def __iter__(self):
        while True:
            yield from torch.randperm(128).tolist()


class Repeated:
    """As timm's: a batch sampler that begins again at its end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class ManyEpochs(DataLoader):
    """As timm's and YOLO's: it makes one iterator for all epochs."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeated(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimization as davda54's: the gradient is that at perturbed weights."""

    def __init__(self, base, rho=0.05):
        super().__init__(base.param_groups, {})
        self.base, self.rho, self.param_groups = base, rho, base.param_groups

    @torch.no_grad()
    def first_step(self):
        parameters = [p for group in self.param_groups for p in group["params"]]
        scale = self.rho / torch.stack([p.grad.norm() for p in parameters]).norm()
        self.old = [(p, p.detach().clone()) for p in parameters]
        for p in parameters:
            if STYLE == "sam_of_data":
                p.data = p.detach() + scale * p.grad
                p.grad.zero_()
            else:
                p.add_(p.grad, alpha=scale)
        if STYLE != "sam_of_data":
            self.zero_grad()

    def second_step(self):
        for p, old in self.old:
            p.data = old
        self.base.step()


def groups(module, decay=1e-4):
    norms = [p for m in module.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    others = [p for p in module.parameters() if not any(p is norm for norm in norms)]
    return [{"params": others, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]


def sgd(parameters, lr=LR, **settings):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True, **settings)


def batches():
    """The batches of three epochs, or as many from a loader without an end."""
    kind = ManyEpochs if STYLE == "many_epochs" else DataLoader
    sampler = Endless() if STYLE == "endless" else None
    loader = kind(Images(), BATCH, shuffle=sampler is None, sampler=sampler, drop_last=True)
    while True:
        yield from loader


torch.manual_seed(1)
model = Keywords() if STYLE == "keywords" else Network()
optimizers = [sgd(groups(model))]
teacher = None
if STYLE in ("body_first", "head_first"):
    body, norms = groups(model)
    body = {**body, "params": [model.conv.weight, model.second.weight]}
    optimizers = [sgd([body, norms]), sgd(model.fc.parameters(), weight_decay=1e-4)]
    optimizers = optimizers[:: 1 if STYLE == "body_first" else -1]
elif STYLE == "numpy":
    optimizers = [sgd(groups(model, np.float32(1e-4)), lr=np.float64(LR))]
elif STYLE == "fused":
    optimizers = [sgd(groups(model), fused=True)]
elif STYLE in ("teacher", "momentum_teacher"):
    teacher = Network(width=16)
    teacher.requires_grad_(STYLE == "momentum_teacher")
    teacher.train(STYLE == "momentum_teacher")
elif STYLE.startswith("sam"):
    optimizers = [Sam(optimizers[0])]
elif STYLE == "lbfgs":
    optimizers = [torch.optim.LBFGS(model.parameters(), lr=LR, max_iter=3)]
elif STYLE == "critic":
    teacher = Network(width=64)
    optimizers.append(sgd(groups(teacher)))
scaler = torch.amp.GradScaler("cpu", enabled=STYLE == "fused")

for update, (images, labels) in zip(range(13), batches(), strict=False):
    if STYLE == "lbfgs":

        def closure(images=images, labels=labels):
            optimizers[0].zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        optimizers[0].step(closure)
        continue
    if STYLE == "keywords":
        loss = model(images=images, labels=labels)
    else:
        with torch.set_grad_enabled(STYLE != "momentum_teacher"):
            taught = teacher(images) if teacher is not None else None
        loss = F.cross_entropy(model(images), labels)
        if teacher is not None and STYLE != "critic":
            loss = 0.3 * loss + F.mse_loss(model.fc.bias, taught.mean(0))
    if STYLE == "views":
        loss = (loss + F.cross_entropy(model(images.flip(3)), labels)) / 2
        if update == 2:
            continue  # as of a loss that is not finite
    scaler.scale(loss).backward()
    if STYLE == "views":
        nn.utils.clip_grad_norm_(model.fc.parameters(), 0.02)
        nn.utils.clip_grad_norm_(model.conv.parameters(), 0.01)
    elif STYLE == "value_clip":
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    elif STYLE == "own_decay":
        for parameter in model.parameters():
            parameter.grad.add_(parameter.detach(), alpha=0.1)
    elif STYLE == "fused" and update == 1:
        model.conv.weight.grad[0, 0, 0, 0] = torch.inf
    elif STYLE == "cleared":
        optimizers[0].zero_grad()
        F.cross_entropy(model(images.flip(3)), labels.flip(0)).backward()
    if STYLE.startswith("sam"):
        optimizers[0].first_step()
        if STYLE == "sam_without_statistics":
            model.bn.momentum = 0.0
        F.cross_entropy(model(images), labels).backward()
        model.bn.momentum = 0.1
        optimizers[0].second_step()
    else:
        scaler.step(optimizers[0])
    if STYLE == "critic":
        optimizers[0].zero_grad()
        (F.cross_entropy(teacher(images), labels) - model(images).mean()).backward()
    for optimizer in optimizers[1:]:
        optimizer.step()
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
    if STYLE == "accuracy":
        hits = (model(images).argmax(1) == labels).float().mean()
