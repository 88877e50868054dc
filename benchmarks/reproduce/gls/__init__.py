"""The GLS paper: generalized leverage scores of ResNet-18 on CIFAR-10, and what the paper prints and claims of them."""
