import json
from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: float
    quantity: int = 0
    tags: list[str] = field(default_factory=list)

    def total(self) -> float:
        return self.price * self.quantity


class Inventory:
    """Items by name, with what they are worth."""

    def __init__(self, path: str):
        self.path = path
        self.items: dict[str, Item] = {}

    def load(self) -> None:
        with open(self.path) as file:
            for entry in json.load(file):
                item = Item(**entry)
                self.items[item.name] = item

    def save(self) -> None:
        entries = [vars(item) for item in self.items.values()]
        with open(self.path, "w") as file:
            json.dump(entries, file, indent=2)

    def add(self, name: str, price: float, quantity: int = 1) -> Item:
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
        item = self.items.setdefault(name, Item(name, price))
        item.quantity += quantity
        item.price = price
        return item

    def remove(self, name: str, quantity: int = 1) -> None:
        item = self.items.get(name)
        if item is None or item.quantity < quantity:
            raise KeyError(f"not enough of {name}")
        item.quantity -= quantity
        if item.quantity == 0:
            del self.items[name]

    def total(self) -> float:
        return sum(item.total() for item in self.items.values())

    def with_tag(self, tag: str) -> list[Item]:
        return [item for item in self.items.values() if tag in item.tags]


if __name__ == "__main__":
    inventory = Inventory("inventory.json")
    inventory.load()
    inventory.add("lamp", 19.5, 3)
    inventory.save()
    print(f"worth {inventory.total():.2f}")
