"""Labels for photos that come with captions alone: the things that several of a photo's captions name.

The names are the classes of COCO (but for orange, which is a colour too), with the words people use for them, and
COCO's own super-classes. They are no annotation: what nobody mentions is missing, and a caption that names a thing
gives its label away. They do to compare models that are all trained and measured on them, and for nothing else.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from polysem.data.collection import Collection
from polysem.inspection.diagnose.error_analysis import NameFinder

SUPER_CLASSES = {
    "person": "person",
    "vehicle": "bicycle, car, motorcycle, airplane, bus, train, truck, boat",
    "outdoor": "traffic light, fire hydrant, stop sign, parking meter, bench",
    "animal": "bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe",
    "accessory": "backpack, umbrella, handbag, tie, suitcase",
    "sports": "frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, "
    "tennis racket",
    "kitchen": "bottle, wine glass, cup, fork, knife, spoon, bowl",
    "food": "banana, apple, sandwich, broccoli, carrot, hot dog, pizza, donut, cake",
    "furniture": "chair, couch, potted plant, bed, dining table, toilet",
    "electronic": "tv, laptop, mouse, remote, keyboard, cell phone",
    "appliance": "microwave, oven, toaster, sink, refrigerator",
    "indoor": "book, clock, vase, scissors, teddy bear, hair drier, toothbrush",
}
GROUPS = {name: group for group, names in SUPER_CLASSES.items() for name in names.split(", ")}
WORDS = {
    "person": "man, men, woman, women, boy, girl, child, children, kid, people, lady, guy, baby, player, rider, skier, "
    "surfer, snowboarder, skateboarder, crowd",
    "bicycle": "bike",
    "motorcycle": "motorbike, scooter",
    "airplane": "plane, jet, aeroplane",
    "boat": "ship, sailboat",
    "cow": "cattle, bull",
    "sheep": "lamb",
    "dog": "puppy",
    "cat": "kitten",
    "skis": "ski, skiing",
    "snowboard": "snowboarding",
    "surfboard": "surf board, surfing",
    "skateboard": "skate board, skateboarding",
    "tennis racket": "racket, racquet, tennis racquet",
    "baseball bat": "bat",
    "sports ball": "ball, soccer ball, tennis ball",
    "couch": "sofa",
    "dining table": "table",
    "tv": "television, tvs",
    "cell phone": "phone, cellphone",
    "refrigerator": "fridge",
    "donut": "doughnut",
    "cup": "mug",
    "potted plant": "plant",
    "handbag": "purse",
    "backpack": "back pack",
    "suitcase": "luggage",
    "teddy bear": "stuffed bear",
}


class Things:
    """Which classes a caption names. The longest name counts: a hot dog is no dog."""

    def __init__(self, groups: Mapping[str, str] = GROUPS) -> None:
        self._class_of = {name: name for name in groups}
        for name, words in WORDS.items():
            self._class_of |= dict.fromkeys(words.split(", "), name)
        self._names = NameFinder(self._class_of)

    def named(self, caption: str) -> set[str]:
        return {self._class_of[word] for word in self._names.find(caption)}


def labelled(photos: Collection, count: int, captions: int = 2, least: int = 10) -> Collection:
    """`count` photos with labels, those with the lowest checksums of their ids; a tenth of them val, a tenth test.

    A label is a class that at least `captions` captions name and at least `least` photos have, or its super-class.
    """
    things, found = Things(), []
    for item in photos:
        named = Counter(name for caption in item.captions for name in things.named(caption))
        agreed = sorted(name for name, times in named.items() if times >= captions)
        if agreed:
            found.append(replace(item, labels=tuple(agreed)))
    found = sorted(found, key=lambda item: _checksum(item.id))[:count]
    common = Counter(label for item in found for label in item.labels)
    kept = []
    for place, item in enumerate(found):
        own = [label for label in item.labels if common[label] >= least]
        if own:
            split = {0: "test", 1: "val"}.get(place % 10, "train")
            kept.append(replace(item, labels=(*own, *_supers(own)), split=split))
    return Collection(f"{photos.name} photos", photos.kind, kept, photos.skipped)


def _supers(labels: Iterable[str]) -> list[str]:
    return sorted({GROUPS[label] for label in labels} - set(labels))


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())
