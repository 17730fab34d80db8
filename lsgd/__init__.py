"""Large-minibatch SGD on ImageNet (Goyal et al. 2017), one trajectory on any hardware."""

__version__ = "0.1.0"
