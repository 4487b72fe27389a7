"""What the app had before: a model, its data, and how it trains."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

Loader = DataLoader[tuple[Tensor, ...]]


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ten digits."""
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        logits: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


def load_data(partition_id: int, num_partitions: int) -> tuple[Loader, Loader]:
    """One node's digits, each node having two or three of the ten; for training and for testing."""
    digits = load_digits()
    labels = torch.from_numpy(digits.target)
    mine = labels % num_partitions == partition_id
    images = torch.from_numpy(digits.images[mine.numpy()]).float().unsqueeze(1) / 16
    rows = TensorDataset(images, labels[mine])
    train, test = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(partition_id))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=16)


def train(net: nn.Module, trainloader: Loader, epochs: int, lr: float) -> None:
    """Train the network on a node's digits."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
