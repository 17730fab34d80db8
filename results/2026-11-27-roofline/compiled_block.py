"""Compile one residual block in bfloat16 and channels_last, to read the code that torch writes.

TORCH_LOGS=output_code TORCHINDUCTOR_COMPILE_THREADS=1 python \
    results/2026-11-27-roofline/compiled_block.py
"""

import torch

from lsgd.rules.batchnorm import WorkerBatchNorm2d, worker_batch_norms
from lsgd.vision import models

torch.set_num_threads(1)
block = models.resnet.Bottleneck(64, 16, norm_layer=WorkerBatchNorm2d).train()
block.to(memory_format=torch.channels_last)
for layer in worker_batch_norms(block):
    layer.seen = torch.zeros(2, layer.num_features)
block.compile(dynamic=False)
images = torch.randn(32, 64, 28, 28).contiguous(memory_format=torch.channels_last)
images = images.bfloat16().requires_grad_()
with torch.autocast("cpu", torch.bfloat16):
    output = block(images)
output.float().square().sum().backward()
