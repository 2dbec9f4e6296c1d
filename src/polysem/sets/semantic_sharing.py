"""Label-wise semantic sharing: an encoder and a classifier that both towers share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import masked_ops
from polysem.dropout import Rate
from polysem.encoders import backbones
from polysem.errors import ConfigError, InputError, unknown
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, TokenSum, registry


class UnbiasedLayerNorm(nn.Module):
    """weight * (x - mean) / (std + 1e-6) + bias, with the unbiased deviation: not nn.LayerNorm's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class TokenLayer(nn.Module):
    """Pre-norm self-attention and feed-forward, each added to what it read."""

    def __init__(self, dim: int, heads: int, ff: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.feed_norm = UnbiasedLayerNorm(dim), UnbiasedLayerNorm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.expand, self.contract = nn.Linear(dim, ff), nn.Linear(ff, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(B, N, D) -> (B, N, D). real: (B, 1, 1, N) the tokens to attend to; None for all."""
        normed = self.attention_norm(x)
        heads = *x.shape[:2], self.heads, -1
        query, key, value = (part(normed).view(heads).transpose(1, 2) for part in (self.query, self.key, self.value))
        rate = self.rate if self.training else 0.0
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=rate)
        x = x + self.dropout(self.out(read.transpose(1, 2).flatten(2)))
        return cast(Tensor, x + self.dropout(self.contract(self.dropout(self.expand(self.feed_norm(x)).relu()))))


_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout", "embedding_dropout", "mlp_dropout"),
)
"""What the families call it."""

_PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose positions are counted from the padding id on."""


class PretrainedTokenEncoder(nn.Module):
    """A text model without its word embeddings: it reads vectors of its own width, and adds its positions to them.

    Args:
        start: the model whose weights it starts from.
        stored: the model's config, where the part is rebuilt and its weights are loaded later.
        sizes: layers, how many of the first ones; heads and ff, to be checked. None: as the model has it.
    """

    def __init__(
        self, start: str | None, stored: Mapping[str, Any] | None, width: int, dropout: float, **sizes: int | None
    ) -> None:
        super().__init__()

        def choose(config: Any) -> tuple[Any, Any]:
            config = getattr(config, "text_config", None) or config
            _check_fit(config, str(start), width, sizes)
            if (layers := sizes["layers"]) is not None:
                config.num_hidden_layers = layers
                if getattr(config, "layer_types", None):  # ModernBERT says of each layer how far it looks
                    config.layer_types = config.layer_types[:layers]
            for name in _DROPOUTS:
                if hasattr(config, name):
                    setattr(config, name, dropout)
            return backbones.transformers().MODEL_MAPPING[type(config)], config

        backbone = backbones.load(start or "", stored is None, stored, choose)
        self.model, self.stored = backbone.module, backbone.config
        settings: Any = backbone.module.config
        self.limit = int(getattr(settings, "max_position_embeddings", None) or 2**31)
        if getattr(settings, "pad_token_id", None) and settings.model_type in _PADDED_POSITIONS:
            self.limit -= int(settings.pad_token_id) + 1
        # It never gets words: their table would be most of its weights.
        self.model.set_input_embeddings(nn.Embedding(1, width))  # type: ignore[operator]
        self.model.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]

    def forward(self, values: Tensor, real: Tensor | None) -> Tensor:
        """(B, N, D) -> (B, N, D). real: (B, N) the tokens to attend to; None for all."""
        if values.shape[1] > self.limit:
            raise InputError(
                f"The model that the shared encoder started from has positions for {self.limit} tokens; an item has "
                f"{values.shape[1]}. Take a coarser grid or shorter texts, or leave sets.start out."
            )
        mask = values.new_ones(values.shape[:2]) if real is None else real
        return cast(Tensor, self.model(inputs_embeds=values, attention_mask=mask.long()).last_hidden_state)


def _check_fit(config: Any, start: str, width: int, sizes: Mapping[str, int | None]) -> None:
    # A masked language model attends in both directions, and takes vectors as well as words.
    known = backbones.transformers().MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in known or config.is_encoder_decoder or not hasattr(config, "num_attention_heads"):
        raise ConfigError(
            f"sets.start={start}: a {config.model_type!r} model does not attend both ways over text. "
            "Give an encoder such as BERT, RoBERTa, MPNet, ModernBERT or MiniLM."
        )
    hidden = int(config.hidden_size)
    if int(getattr(config, "embedding_size", hidden)) != hidden:
        raise ConfigError(
            f"sets.start={start}: a {config.model_type!r} model reads tokens of width {config.embedding_size} and has "
            f"states of width {hidden}; the shared encoder has one width. Give a BERT, RoBERTa, MPNet or MiniLM."
        )
    if hidden != width:
        raise ConfigError(
            f"sets.start={start} has states of width {hidden}, and the shared encoder reads input_dim={width}. "
            f"Make both sides as wide: --set image.sets.input_dim={hidden} --set image.project.dim={hidden} "
            f"--set text.project.dim={hidden} (image.encoder.dim and text.encoder.dim in a recipe without project), or "
            "leave sets.start out."
        )
    if (sizes["layers"] or 0) > int(config.num_hidden_layers):
        raise ConfigError(f"sets.start={start} has {config.num_hidden_layers} layers; got layers={sizes['layers']}.")
    for knob, theirs in (("heads", "num_attention_heads"), ("ff", "intermediate_size")):
        wanted, has = sizes[knob], getattr(config, theirs, None)
        if wanted is not None and has not in (None, wanted):
            raise ConfigError(f"sets.start={start} has {knob}={has}; got {knob}={wanted}. Leave it out.")


LAYERS, HEADS, FF = 6, 8, 2048
"""The paper's encoder, where neither the recipe nor a model to start from says otherwise."""

# The released code's names inside one layer, and ours; then those of tensors that no embedding depends on: the heads of
# its masked-word and masked-region tasks, and a second classifier that it builds and never calls.
_LAYER_KEYS = {
    "self_attn.linears.0": "query",
    "self_attn.linears.1": "key",
    "self_attn.linears.2": "value",
    "self_attn.linears.3": "out",
    "feed_forward.w_1": "expand",
    "feed_forward.w_2": "contract",
    "sublayer.0.norm": "attention_norm",
    "sublayer.1.norm": "feed_norm",
}
_UNUSED = ("head.fc_MLM.", "head.fc_MOC.", "transformer.fc_predict.")
_LEAVES = {"a_2": "weight", "b_2": "bias"}


@registry.register("semantic_sharing", stored_as="classes")
class SemanticSharing(SetPredictor):
    """Label-wise semantic sharing: an item as the mean class probabilities of its tokens. `dim` counts the classes.

    h = ReLU(norm(transformer(x))); p = sigmoid(W h) for each token; vector = unit(mean of p over the tokens).
    When to use it: for items with labels, shared by both towers (text["sets"] = "shared") at width `input_dim`. A part
    of its own in each tower is the baseline of independent classifiers.

    labels     the names of the classes, in order; training takes them from the data
    read       what is classified: all "tokens", averaged, or a learned "cls" token before them
    embed      the vector: the "classes" as the paper has it, or the encoder's "state" (dim = input_dim)
    scaled     each token's p is scaled to length 1 before the mean, as the released head does; without it the mean is
               the class-probability vector
    normalise  the vector has length 1 like any other set element; without it embeddings are those of the released
               code, which compares them by cosine, or on COCO by their plain product
    start      a text model (minilm, a folder, a name on the hub) whose first `layers` the encoder is and starts from;
               its width must be `input_dim`, and it brings `heads` and `ff`
    variant    "official" has no padding mask, as the released code: padded tokens attend, are attended to and counted
    """

    needs_global = False
    classifies = True
    predicts_tokens = True

    def __init__(
        self,
        dim: PositiveInt,
        input_dim: Annotated[int, Field(ge=2)],
        layers: PositiveInt | None = None,
        heads: PositiveInt | None = None,
        ff: PositiveInt | None = None,
        dropout: Rate = 0.0,
        labels: list[str] | None = None,
        read: Literal["tokens", "cls"] = "tokens",
        embed: Literal["classes", "state"] = "classes",
        scaled: bool = True,
        normalise: bool = True,
        start: str | None = None,
        backbone_config: dict[str, Any] | None = None,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(dim, 1, input_dim)
        if labels is not None and len(set(labels)) != len(labels):
            self.reject_knobs(f"labels must be unique, got {labels}.")
        if embed == "classes" and labels is not None and len(labels) != dim:
            self.reject_knobs(f"dim={dim} counts the classes, and there are {len(labels)} labels.")
        if embed == "state" and labels is None:
            self.reject_knobs("embed='state' leaves dim to the encoder's state: name the classes with labels=[…].")
        if embed == "state" and dim != input_dim:
            self.reject_knobs(f"embed='state' gives vectors of width input_dim={input_dim}, not dim={dim}.")
        self.labels = None if labels is None else tuple(labels)
        self.dimensions = self.labels if embed == "classes" else None
        self.read, self.embed, self.scaled, self.normalise, self.variant = read, embed, scaled, normalise, variant
        self.borrowed: PretrainedTokenEncoder | None = None  # the name stands in saved weights
        if start is not None or backbone_config is not None:
            sizes = {"layers": layers, "heads": heads, "ff": ff}
            self.borrowed = PretrainedTokenEncoder(start, backbone_config, input_dim, dropout, **sizes)
        else:
            if input_dim % (heads or HEADS):
                self.reject_knobs(f"input_dim={input_dim} does not divide into heads={heads or HEADS}.")
            knobs = input_dim, heads or HEADS, ff or FF, dropout
            self.layers = nn.ModuleList(TokenLayer(*knobs) for _ in range(layers or LAYERS))
            self.norm = UnbiasedLayerNorm(input_dim)
        self.predict_classes = nn.Linear(input_dim, dim if labels is None else len(labels))
        self.cls = nn.Parameter(0.02 * torch.randn(input_dim)) if read == "cls" else None
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and not name.startswith("borrowed."):
                nn.init.xavier_uniform_(module.weight)

    @classmethod
    def dimensions_are_labels(cls, knobs: Mapping[str, Any]) -> bool:
        return bool(cls.knob(knobs, "embed") == "classes")

    def resolved_knobs(self) -> Mapping[str, Any]:
        return {} if self.borrowed is None else {"backbone_config": self.borrowed.stored}

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        states, summary = self._encode(features)
        if summary is not None:
            logits = self.predict_classes(summary)
            vectors, weights = self._class_vector(logits), None
            residual = (vectors if self.embed == "classes" else summary)[:, None]
        else:
            weights = self._weights(features)
            token_logits = self.predict_classes(states)
            vectors = self._class_vector(token_logits) if self.embed == "classes" else states
            residual = weights[:, None] @ vectors
            logits = None if self.labels is None else _mean_logits(token_logits, weights)
        vectors = masked_ops.normalise(residual) if self.normalise else residual
        attention = None if weights is None else weights[:, None]
        return SetPrediction(vectors, attention, residual, None, None if self.labels is None else logits, states)

    def as_sum(self, features: LocalFeatures) -> TokenSum | None:
        if self.read == "cls":
            return None
        states, weights = self._encode(features)[0], self._weights(features)
        vectors = self._class_vector(self.predict_classes(states)) if self.embed == "classes" else states
        return TokenSum(weights[..., None] * vectors, weights)

    def token_classes(self, features: LocalFeatures) -> Tensor:
        """(B, N, C): the class probabilities of each token."""
        return self._class_vector(self.predict_classes(self._encode(features)[0]))

    def _class_vector(self, logits: Tensor) -> Tensor:
        return masked_ops.normalise(logits.sigmoid()) if self.scaled else logits.sigmoid()

    def _weights(self, features: LocalFeatures) -> Tensor:
        """(B, N): the weight of each token in the mean."""
        counted = torch.ones_like(features.mask) if self.variant == "official" else features.mask
        return counted.to(features.values.dtype) / counted.sum(1, keepdim=True)

    def _encode(self, features: LocalFeatures) -> tuple[Tensor, Tensor | None]:
        """The state of each token (B, N, D), and of the cls token (B, D) where `read` is "cls"."""
        x, real = features.values, features.mask
        if self.variant == "paper":
            x = features.zero_padding().values
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
            real = torch.cat([torch.ones_like(real[:, :1]), real], 1)
        # Without padding no mask is needed, and attention without one is faster.
        plain = self.variant == "official" or (not masked_ops.is_tracing() and bool(real.all()))
        if self.borrowed is not None:
            states = self.borrowed(x, None if plain else real)
        else:
            for layer in self.layers:
                x = layer(x, None if plain else real[:, None, None])
            states = self.norm(x).relu()
        return (states, None) if self.cls is None else (states[:, 1:], states[:, 0])

    @torch.no_grad()
    def initialise_frequencies(self, frequencies: Tensor) -> None:
        self.predict_classes.bias.copy_(torch.logit(frequencies, eps=1e-4))

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The names of the released transformer and head, as `transformer.*` and `head.*`. Other heads are dropped."""
        used = {name: tensor for name, tensor in state.items() if not name.startswith(_UNUSED)}
        return {self._rename(name): torch.as_tensor(tensor) for name, tensor in used.items()}

    def _rename(self, name: str) -> str:
        module, _, leaf = name.rpartition(".")
        leaf = _LEAVES.get(leaf, leaf)
        known = {"transformer.encoder.norm": "norm", "head.fc_predict": "predict_classes"}
        if module in known:
            return f"{known[module]}.{leaf}"
        match = re.fullmatch(r"transformer\.encoder\.layers\.(\d+)\.(.+)", module)
        if match is None or match[2] not in _LAYER_KEYS:
            raise unknown("tensor of the released label-wise model", name, [*known, "transformer.encoder.layers.<i>.*"])
        return f"layers.{match[1]}.{_LAYER_KEYS[match[2]]}.{leaf}"


def _mean_logits(of_tokens: Tensor, weights: Tensor) -> Tensor:
    """(B, N, C), (B, N) -> (B, C): the logit of the mean probability. Both tails are summed: 1 - p would round to 0."""
    with torch.autocast(of_tokens.device.type, enabled=False):
        precise = of_tokens if of_tokens.dtype == torch.float64 else of_tokens.float()
        yes, no = (weights[:, None].to(precise) @ side.sigmoid() for side in (precise, -precise))
        return (yes.clamp(min=1e-30).log() - no.clamp(min=1e-30).log())[:, 0]
