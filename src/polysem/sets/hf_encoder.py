"""A pretrained Hugging Face text model as the shared encoder of semantic sharing: vectors in, states out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from polysem.encoders import backbones
from polysem.errors import ConfigError, InputError

_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout", "embedding_dropout", "mlp_dropout"),
)
"""What the families call it."""


class PretrainedTokenEncoder(nn.Module):
    """A text model without its word embeddings: it reads vectors of its own width, and adds its positions to them.

    Args:
        start: the model whose weights it starts from.
        stored: the model's config, where the part is rebuilt and its weights are loaded later.
        layers: how many of the first layers; None for all.
    """

    def __init__(
        self,
        start: str | None,
        stored: Mapping[str, Any] | None,
        width: int,
        layers: int | None,
        heads: int | None,
        ff: int | None,
        dropout: float,
    ) -> None:
        super().__init__()

        def choose(config: Any) -> tuple[Any, Any]:
            config = getattr(config, "text_config", None) or config
            _check_fit(config, str(start), width, layers, heads, ff)
            if layers is not None:
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
        states: Tensor = self.model(inputs_embeds=values, attention_mask=mask.long()).last_hidden_state
        return states


# Their positions are counted from the padding id on.
_PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")


def _check_fit(config: Any, start: str, width: int, layers: int | None, heads: int | None, ff: int | None) -> None:
    # A masked language model attends in both directions, and takes vectors as well as words.
    known = backbones.transformers().MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in known or config.is_encoder_decoder or not hasattr(config, "num_attention_heads"):
        raise ConfigError(
            f"sets.start={start}: a {config.model_type!r} model has no text layers to start from with attention both "
            "ways. Give an encoder such as BERT, RoBERTa, MPNet, ModernBERT or MiniLM."
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
    if layers is not None and layers > int(config.num_hidden_layers):
        raise ConfigError(
            f"sets.start={start} has {config.num_hidden_layers} layers; got layers={layers}. "
            f"Take at most {config.num_hidden_layers}."
        )
    theirs = {"heads": config.num_attention_heads, "ff": getattr(config, "intermediate_size", None)}
    for knob, wanted in (("heads", heads), ("ff", ff)):
        if wanted is not None and theirs[knob] is not None and wanted != theirs[knob]:
            raise ConfigError(
                f"sets.start={start} has {knob}={theirs[knob]}; got {knob}={wanted}. Leave it out: the "
                "model brings its own."
            )
