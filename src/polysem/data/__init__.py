"""Data: from any folder of pictures, words, labels or features to a `Collection`."""

from polysem.data.collection import Box, Collection, DataError, Item, Media, Problem, Problems, Skipped, load_features
from polysem.data.images import ImageError, load_image
from polysem.data.readers import open_collection
from polysem.data.store import FeatureStore, StoreError
from polysem.data.video import VideoError, sample_frames, video_duration
from polysem.data.vocabulary import Vocabulary

__all__ = [
    "Box",
    "Collection",
    "DataError",
    "FeatureStore",
    "ImageError",
    "Item",
    "Media",
    "Problem",
    "Problems",
    "Skipped",
    "StoreError",
    "VideoError",
    "Vocabulary",
    "load_features",
    "load_image",
    "open_collection",
    "sample_frames",
    "video_duration",
]
