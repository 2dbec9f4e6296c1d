"""What the frames of a video say by themselves: the score of each with a text, and the moment they make."""

from __future__ import annotations

import torch
from torch import Tensor

from polysem.models import Model
from polysem.models.embedding import move
from polysem.models.tower import Inputs
from polysem.models.video import Moment, embed_with_frames, find_moment


def moment(model: Model, video: Inputs, text: Tensor, duration: float | None) -> Moment:
    """Of one video, the tower's inputs for a batch of it alone, and a text's set (L, D).

    The same frames and scores that a search of an index compares, all of them and unrounded.
    """
    tower, training = model.image, model.image.training
    tower.eval()
    try:
        with torch.no_grad():
            _, (frames,) = embed_with_frames(tower, move(video, model.device), most=2**31)
            scores = model.similarity.scores(text[None].to(frames), frames)[0]
    finally:
        tower.train(training)
    return find_moment(scores.double().cpu().numpy(), duration)
