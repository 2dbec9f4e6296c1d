"""Every recipe's loss once more, slowly and plainly: one item at a time, without padding, with loops over pairs.

Written from the papers' formulas rather than from the parts, whose weights it borrows. What looks at several items at
once (batch norm, the loss) says so by taking lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polysem import sets
from polysem.models import Model, Tower
from polysem.recipes import Recipe


@dataclass
class Item:
    """tokens: (n, D). padding: what stands in the padded slots, for released code that reads it. summary: (G,).
    places: of the tokens that are left, where some were dropped."""

    tokens: Tensor
    padding: Tensor
    summary: Tensor | None = None
    places: Tensor | None = None


def loss(
    model: Model,
    recipe: Recipe,
    images: list[Any],
    texts: list[Any],
    keep: Any,
    positives: Any,
    epoch: int,
    labels: Any = None,
) -> Any:
    image_sets = embed(model.image, images, keep[0])
    text_sets = embed(model.text, texts, keep[1])
    if recipe.objective["name"] in LABEL_OBJECTIVES:
        total = LABEL_OBJECTIVES[recipe.objective["name"]](
            recipe.objective, image_sets, text_sets, labels, positives.tolist()
        )
    else:
        score = SIMILARITIES[recipe.similarity["name"]]
        scores = [[score(model.similarity, a[0], b[0]) for b in text_sets] for a in image_sets]
        total = OBJECTIVES[recipe.objective["name"]](recipe.objective, scores, positives.tolist(), epoch)
    for entry in recipe.auxiliary:
        assert (entry.on, entry.objective) == ("global", None)
        scores = [[a[2] @ b[2] for b in text_sets] for a in image_sets]
        alone = OBJECTIVES[recipe.objective["name"]](recipe.objective, scores, positives.tolist(), epoch)
        total = total + entry.weight * alone
    for entry in recipe.regularisers:
        side = 0 if entry.on == "vectors" else 1
        regularise = REGULARISERS[entry.name]
        total = total + entry.weight * regularise(
            [s[side] for s in image_sets], [s[side] for s in text_sets], entry.knobs
        )
    return total


# ----------------------------------------------------------------------------------------------------------- a tower


def embed(tower: Tower, inputs: list[Any], keep: Tensor | None) -> list[tuple[Tensor, ...]]:
    """The (K, D) vectors of each item, the (K, D) residuals behind them, and what a classifier says of it, if any."""
    encoded = ENCODERS[tower.encoder.config["name"]](tower.encoder, inputs)
    if keep is not None:
        encoded = [
            Item(e.tokens[kept[: len(e.tokens)]], e.padding, e.summary, kept[: len(e.tokens)].nonzero()[:, 0])
            for e, kept in zip(encoded, keep, strict=True)
        ]
    projected = encoded
    if tower.project is not None:
        projected = region(tower.project, [item.tokens for item in encoded])
        for before, after in zip(encoded, projected, strict=True):
            after.summary, after.places = before.summary, before.places
    if tower.pool is not None:
        pooled = POOLINGS[tower.pool.config["name"]](tower.pool, [item.tokens for item in projected])
        for item, vector in zip(projected, pooled, strict=True):
            item.summary = vector
    read = projected if tower.reads == "projected" else encoded
    summaries = [item.summary for item in projected]
    return SETS[sets.registry.current_name(tower.sets.config["name"])](tower.sets, read, summaries)


# ---------------------------------------------------------------------------------------------------------- encoders


def region(part: Any, items: list[Tensor]) -> list[Item]:
    """f = fc(x), plus an MLP with batch norm over all tokens of all items."""
    longest = max(len(x) for x in items)
    padding = [x.new_zeros(longest - len(x), x.shape[1]) for x in items]
    official = part.variant == "official"
    together = torch.cat([torch.cat([x, p]) if official else x for x, p in zip(items, padding, strict=True)])

    def encode(x: Tensor) -> Tensor:
        projected = linear(part.fc, x)
        if part.form == "linear":
            return projected
        seen = linear(part.hidden, together if part.form == "vse_infty" else linear(part.fc, together))
        hidden = linear(part.hidden, x if part.form == "vse_infty" else projected)
        return projected + linear(part.out, torch.relu(batch_norm(part.norm, hidden, seen)))

    empty = [x.new_zeros(0, part.dim) for x in items]
    return [Item(encode(x), encode(p) if official else e) for x, p, e in zip(items, padding, empty, strict=True)]


def frames(part: Any, items: list[Tensor]) -> list[Item]:
    return region(part.projection, items)


def picture(part: Any, items: list[Tensor]) -> list[Item]:
    return [whole(part, part.tokens(pixels[None])[0]) for pixels in items]


def grids(part: Any, items: list[Tensor]) -> list[Item]:
    """Each network's map cut into n x n squares; a cell on a border counts by the part of it that lies inside."""
    found = []
    for pixels in items:
        joined = []
        for network, size in zip(part.backbone, part.sizes, strict=True):
            seen = torch.nn.functional.interpolate(pixels[None], (size, size), mode="bilinear")
            feature_map = network(seen).last_hidden_state[0].permute(1, 2, 0)
            squares = [(row, column) for row in range(part.side) for column in range(part.side)]
            joined.append(torch.stack([mean_of_square(feature_map, part.side, *at) for at in squares]))
        found.append(whole(part, torch.cat(joined, 1)))
    return found


def mean_of_square(feature_map: Tensor, n: int, row: int, column: int) -> Tensor:
    side = len(feature_map)

    def inside(cell: int, square: int) -> float:
        return max(0.0, min((cell + 1) / side, (square + 1) / n) - max(cell / side, square / n))

    return sum(inside(y, row) * inside(x, column) * n * n * feature_map[y, x] for y in range(side) for x in range(side))


def video(part: Any, items: list[Tensor]) -> list[Item]:
    """Each frame by itself: the mean of its tokens."""
    found = []
    for frames in items:
        tokens = torch.stack([whole(part, part.encoder.tokens(pixels[None])[0]).tokens.mean(0) for pixels in frames])
        found.append(Item(tokens, tokens[:0]))
    return found


def transformer(part: Any, items: list[list[int]]) -> list[Item]:
    found = []
    for ids in items:
        given = torch.tensor([ids])
        states = part.backbone(input_ids=given, attention_mask=torch.ones_like(given)).last_hidden_state[0]
        found.append(whole(part, states))
    return found


def dual_image(part: Any, items: list[Tensor]) -> list[Item]:
    """The patches, and the pair's own embedding of the picture."""
    made = [part.backbone.get_image_features(pixel_values=pixels[None]) for pixels in items]
    return [Item(each.last_hidden_state[0], each.last_hidden_state[0, :0], each.pooler_output[0]) for each in made]


def dual_text(part: Any, items: list[list[int]]) -> list[Item]:
    made = [part.backbone.get_text_features(input_ids=torch.tensor([ids])) for ids in items]
    return [Item(each.last_hidden_state[0], each.last_hidden_state[0, :0], each.pooler_output[0]) for each in made]


def whole(part: Any, states: Tensor) -> Item:
    """A backbone's tokens, projected where the encoder has a projection."""
    tokens = states if part.projection is None else linear(part.projection, states)
    return Item(tokens, tokens[:0])


def bigru(part: Any, items: list[list[int]]) -> list[Item]:
    longest, found = max(len(ids) for ids in items), []
    for ids in items:
        words = torch.stack([part.embedding.weight[i] for i in ids])
        forward, backward = gru(part.gru, words), gru(part.gru, words.flip(0), "_reverse").flip(0)
        states, summary = (forward + backward) / 2, (forward[-1] + backward[0]) / 2
        tokens = states if part.local == "states" else words
        nothing = part.embedding.weight[0] if part.local == "words" else torch.zeros_like(states[0])
        absent = [nothing] * (longest - len(ids)) if part.variant == "official" else []
        found.append(Item(tokens, torch.stack(absent) if absent else tokens[:0], summary))
    return found


ENCODERS: dict[str, Callable[..., list[Item]]] = {
    "region": region,
    "frames": frames,
    "grid": picture,
    "grids": grids,
    "patch": picture,
    "video_frames": video,
    "transformer": transformer,
    "dual_image": dual_image,
    "dual_text": dual_text,
    "bigru": bigru,
}


# ---------------------------------------------------------------------------------------------------------- poolings


def one_by_one(pool: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, list[Tensor]], list[Tensor]]:
    return lambda part, items: [pool(part, x) for x in items]


def mean(_: Any, x: Tensor) -> Tensor:
    return sum(x) / len(x)


def largest(_: Any, x: Tensor) -> Tensor:
    return torch.stack([max(column) for column in x.t()])


def kmax(part: Any, x: Tensor) -> Tensor:
    k = min(part.k, len(x))
    return torch.stack([sum(sorted(column, reverse=True)[:k]) / k for column in x.t()])


def soft_maximum(_: Any, x: Tensor) -> Tensor:
    return torch.stack([(softmax(column) * column).sum() for column in x.t()])


def sorted_down(x: Tensor) -> Tensor:
    return torch.stack([torch.stack(sorted(column, reverse=True)) for column in x.t()], dim=1)


def gpo(part: Any, x: Tensor) -> Tensor:
    """v = sum_k theta_k u_k, theta = softmax(g(k, n) / 0.1)."""
    generator, ranked = part.generator, sorted_down(x)
    positions = sines([float(k) for k in range(len(x))], generator.positions.dim).to(x)
    if generator.positions.feature is not None:
        positions = positions + linear(generator.positions.feature, ranked)
    if hasattr(generator, "gru"):
        backward = gru(generator.gru, positions.flip(0), "_reverse").flip(0)
        states = (gru(generator.gru, positions) + backward) / 2
    else:
        states = transformer_layer(generator.layer, positions)
    scores = linear(generator.score, states) / part.temperature
    columns = [softmax(column) for column in scores.t()]
    theta = torch.stack(columns * (x.shape[1] if len(columns) == 1 else 1), dim=1)
    return (theta * ranked).sum(0)


def adpool(part: Any, items: list[Tensor]) -> list[Tensor]:
    longest, found = max(len(x) for x in items), []
    for x in items:
        levels = []
        if part.token_level:
            ranked = sorted_down(x)
            if part.variant == "official":  # padded slots compete for weight, with nothing to give
                ranked = torch.cat([ranked, ranked.new_zeros(longest - len(x), x.shape[1])])
            logits = linear(part.linear, ranked)
            logits = logits if part.variant == "paper" else torch.relu(logits)
            weights = torch.stack([softmax(column) for column in logits.t()], dim=1)
            levels.append((weights * ranked).sum(0))
        if part.embedding_level:
            levels.append(soft_maximum(None, x))
        if part.balance is None:
            found.append(sum(levels) / len(levels))
        else:
            share = softmax(torch.cat([linear(part.balance, level) for level in levels]))
            found.append(share[0] * levels[0] + share[1] * levels[1])
    return found


def lip(part: Any, x: Tensor) -> Tensor:
    raw = linear(part.logit, x)
    raw = (raw - mean(None, raw)) / (mean(None, (raw - mean(None, raw)) ** 2) + 1e-5).sqrt()
    logits = part.scale * torch.sigmoid(part.norm_scale * raw + part.norm_shift)
    return torch.stack([(softmax(column) * x[:, j]).sum() for j, column in enumerate(logits.t())])


def adapool(part: Any, x: Tensor) -> Tensor:
    centre, beta = mean(None, x), part.beta.clamp(0, 1)
    alike = 2 * (x * centre).abs() / (x**2 + centre**2)
    typical = torch.stack([(softmax(column) * x[:, j]).sum() for j, column in enumerate(alike.t())])
    return beta * typical + (1 - beta) * soft_maximum(None, x)


def last_state(part: Any, x: Tensor) -> Tensor:
    return gru(part.gru, x)[-1]


def gcn(part: Any, items: list[Tensor]) -> list[Tensor]:
    for layer in part.layers:
        updates = []
        for x in items:
            relations = linear(layer.theta, x) @ linear(layer.phi, x).t() / len(x)
            updates.append(linear(layer.out, relations @ linear(layer.g, x)))
        together = torch.cat(updates)
        items = [x + batch_norm(layer.norm, update, together) for x, update in zip(items, updates, strict=True)]
    return [gru(part.gru, torch.stack([unit(row) for row in x]))[-1] for x in items]


def self_attention(part: Any, x: Tensor) -> Tensor:
    return mean(None, transformer_layer(part.layer, x))


POOLINGS: dict[str, Callable[[Any, list[Tensor]], list[Tensor]]] = {
    "mean": one_by_one(mean),
    "max": one_by_one(largest),
    "kmax": one_by_one(kmax),
    "softpool": one_by_one(soft_maximum),
    "gpo": one_by_one(gpo),
    "adpool": adpool,
    "lip": one_by_one(lip),
    "adapool": one_by_one(adapool),
    "seq2seq": one_by_one(last_state),
    "gcn": gcn,
    "selfattention": one_by_one(self_attention),
}


# -------------------------------------------------------------------------------------------------------------- sets


def single(part: Any, items: list[Item], _: Any) -> list[tuple[Tensor, Tensor]]:
    pooled = POOLINGS[part.pooling.config["name"]](part.pooling, [item.tokens for item in items])
    return [(unit(v)[None], v[None]) for v in pooled]


def global_feature(_: Any, __: Any, summaries: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(unit(v)[None], v[None]) for v in summaries]


def pie_net(part: Any, items: list[Item], summaries: list[Any]) -> list[tuple[Tensor, Tensor]]:
    found = []
    for item, glob in zip(items, summaries, strict=True):
        logits = linear(part.w_2, torch.tanh(linear(part.w_1, item.tokens)))
        read = [softmax(head) @ item.tokens for head in logits.t()]
        residual = [torch.sigmoid(linear(part.fc, one)) for one in read]
        vectors = [unit(layer_norm(part.norm, one + glob)) for one in residual]
        found.append((torch.stack(vectors), torch.stack(residual)))
    return found


def attention_pooling(part: Any, items: list[Item], _: Any) -> list[tuple[Tensor, Tensor]]:
    """K weighted means of the tokens, each through f(m) = fc(m) + MLP(m)."""
    found = []
    for item in items:
        projected = []
        for head in linear(part.w_2, torch.tanh(linear(part.w_1, item.tokens))).t():
            read = sum(weight * token for weight, token in zip(softmax(head), item.tokens, strict=True))
            projected.append(linear(part.fc, read) + linear(part.mlp[3], gelu(linear(part.mlp[0], read))))
        found.append((torch.stack([unit(one) for one in projected]), torch.stack(projected)))
    return found


def slots(part: Any, items: list[Item], summaries: list[Any]) -> list[tuple[Tensor, Tensor]]:
    """T times: share each token out among the slots (or each slot over the tokens), add what was read, feed forward."""
    block, found = part.block, []
    for item, glob in zip(items, summaries, strict=True):
        official = block.how.padding_competes
        x = torch.cat([item.tokens, item.padding]) if official else item.tokens
        positions = torch.zeros_like(x)
        if block.sine_positions:
            turns = [(i + 1) / (len(x) + 1e-6) * 2 * math.pi for i in range(len(x))]
            positions = sines(turns, x.shape[1]).to(x)
        if hasattr(block, "slots"):
            now = list(block.slots)
        else:
            now = [block.slot_mean[0] + block.slot_log_std[0].exp() * noise for noise in block.slot_noise]
        for step in range(block.iterations):
            update = block.updates[0 if block.tied else step]
            read = attend(update.attention, now, x, positions, block.how.over, len(item.tokens))
            if update.gru is None:
                now = [slot + new for slot, new in zip(now, read, strict=True)]
            else:
                now = [gru_step(update.gru, "", new, slot) for slot, new in zip(now, read, strict=True)]
            now = [slot + feed_forward(update.feed_forward, slot) for slot in now]
        residual = [layer_norm(block.norm, slot) for slot in now]
        joined = residual
        if part.global_norm is not None:
            joined = [one + layer_norm(part.global_norm, glob) for one in residual]
        found.append((torch.stack([unit(v) for v in joined]), torch.stack(residual)))
    return found


def semantic_sharing(part: Any, items: list[Item], _: Any) -> list[tuple[Tensor, ...]]:
    """p = sigmoid(W h) of each token, h from the shared encoder; the item is their mean."""
    found = []
    for item in items:
        x = torch.cat([item.tokens, item.padding]) if part.variant == "official" else item.tokens
        if part.borrowed is not None:
            places = torch.arange(len(x)) if item.places is None else item.places
            hidden = part.borrowed.model(inputs_embeds=x[None], position_ids=places[None]).last_hidden_state[0]
        else:
            for layer in part.layers:
                x = encoder_layer(layer, x)
            hidden = torch.stack([torch.relu(spread_norm(part.norm, row)) for row in x])
        p = [1 / (1 + torch.exp(-linear(part.predict_classes, row))) for row in hidden]
        chance = sum(p) / len(p)
        residual = sum(unit(one) for one in p) / len(p) if part.scaled else chance
        vector = unit(residual) if part.normalise else residual
        found.append((vector[None], residual[None], torch.log(chance / (1 - chance))))
    return found


def common_space(part: Any, items: list[Item], _: Any) -> list[tuple[Tensor, ...]]:
    pooled = POOLINGS[part.pooling.config["name"]](part.pooling, [item.tokens for item in items])
    points = [linear(part.space, torch.relu(v)) for v in pooled]
    return [(unit(u)[None], u[None], linear(part.predict_classes, u)) for u in points]


def encoder_layer(layer: Any, x: Tensor) -> Tensor:
    normed = torch.stack([spread_norm(layer.attention_norm, row) for row in x])
    q, k, v = (linear(part, normed) for part in (layer.query, layer.key, layer.value))
    width, heads = x.shape[1] // layer.heads, []
    for head in range(layer.heads):
        own = slice(head * width, (head + 1) * width)
        heads.append(torch.stack([softmax(k[:, own] @ row / math.sqrt(width)) @ v[:, own] for row in q[:, own]]))
    x = x + linear(layer.out, torch.cat(heads, 1))
    normed = torch.stack([spread_norm(layer.feed_norm, row) for row in x])
    return x + linear(layer.contract, torch.relu(linear(layer.expand, normed)))


def spread_norm(norm: Any, x: Tensor) -> Tensor:
    spread = (((x - x.mean()) ** 2).sum() / (len(x) - 1)).sqrt()
    return norm.weight * (x - x.mean()) / (spread + 1e-6) + norm.bias


def attend(part: Any, now: list[Tensor], x: Tensor, positions: Tensor, over: str, real: int) -> list[Tensor]:
    """What each slot reads. Tokens past `real` are padding: released code gives every slot an equal share of it."""
    context = torch.stack([layer_norm(part.norm_context, row) for row in x])
    queries = [linear(part.to_q, layer_norm(part.norm, slot)) for slot in now]
    keys, values = linear(part.to_k, context + positions), linear(part.to_v, context)
    width = keys.shape[1] // part.heads
    read: list[list[Tensor]] = [[] for _ in now]
    for head in range(part.heads):
        own = slice(head * width, (head + 1) * width)
        logits = torch.stack([keys[:, own] @ query[own] * part.scale for query in queries])
        if over == "tokens":
            weights = [softmax(row) for row in logits]
        else:
            shares = [softmax(column) for column in logits.t()[:real]]
            shares += [logits.new_full((len(now),), 1 / len(now))] * (len(x) - real)
            weights = [row / (row.sum() + 1e-7) for row in torch.stack(shares, dim=1)]
        for k, row in enumerate(weights):
            read[k].append(row @ values[:, own])
    return [linear(part.to_out, torch.cat(heads)) for heads in read]


def competing_readings(part: Any, items: list[Item], summaries: list[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The elements share out each token; each reads what it won and steps away from the global vector."""
    found = []
    bases = SETS[sets.registry.current_name(part.base.config["name"])](part.base, items, summaries)
    for item, base in zip(items, bases, strict=True):
        whole = base[0][0] if part.base_map is None else linear(part.base_map, base[1][0])
        whole = whole / whole.norm()
        rows = [linear(part.w_2, torch.tanh(linear(part.w_1, x))) for x in item.tokens]  # of each token, (K,)
        if part.cell_bias is not None:
            places = range(len(rows)) if item.places is None else item.places.tolist()
            rows = [row + part.cell_bias[:, place] for row, place in zip(rows, places, strict=True)]
        shares = torch.stack([softmax(row) for row in rows] if part.competes else rows)
        shares = shares / sum(shares) if part.competes else torch.stack([softmax(column) for column in shares.t()], 1)
        residual = [
            linear(part.head, sum(a * x for a, x in zip(column, item.tokens, strict=True))) for column in shares.t()
        ]
        vectors = [whole + part.gamma * r / r.norm() for r in residual]
        found.append((torch.stack([v / v.norm() for v in vectors]), torch.stack(residual), whole))
    return found


def feed_forward(part: Any, slot: Tensor) -> Tensor:
    return linear(part[4], gelu(linear(part[1], layer_norm(part[0], slot))))


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


SETS: dict[str, Callable[..., list[tuple[Tensor, Tensor]]]] = {
    "single": single,
    "global_feature": global_feature,
    "pie_net": pie_net,
    "attention_pooling": attention_pooling,
    "competing_readings": competing_readings,
    "slots": slots,
    "transformer": slots,
    "semantic_sharing": semantic_sharing,
    "dscmr": common_space,
}


# ------------------------------------------------------------------------------------------------------ similarities


def cosine(_: Any, a: Tensor, b: Tensor) -> Tensor:
    return a[0] @ b[0] / (a[0].norm() * b[0].norm())


def mil(_: Any, a: Tensor, b: Tensor) -> Tensor:
    return max(x @ y for x in a for y in b)


def chamfer(_: Any, a: Tensor, b: Tensor) -> Tensor:
    there = sum(max(x @ y for y in b) for x in a) / len(a)
    back = sum(max(x @ y for x in a) for y in b) / len(b)
    return (there + back) / 2


def smooth_chamfer(part: Any, a: Tensor, b: Tensor) -> Tensor:
    there = sum(torch.log(sum(torch.exp(part.alpha * (x @ y)) for y in b)) for x in a) / len(a)
    back = sum(torch.log(sum(torch.exp(part.alpha * (x @ y)) for x in a)) for y in b) / len(b)
    return (there + back) / (2 * part.alpha)


def soft_maximum_scores(part: Any, a: Tensor, b: Tensor) -> Tensor:
    def near(y: Tensor) -> Tensor:
        cosines = torch.stack([x @ y for x in a])
        return softmax(part.alpha * cosines) @ cosines

    return sum(near(y) for y in b) / len(b)


def match_probability(part: Any, a: Tensor, b: Tensor) -> Tensor:
    def probability(x: Tensor, y: Tensor) -> Tensor:
        if part.form == "dive":
            return torch.sigmoid(part.scale[0] * (x @ y) + part.shift[0])
        near = -part.scale[0] * torch.sqrt(((x - y) ** 2).sum() + 1e-6) + part.shift[0]
        return torch.exp(near) / (torch.exp(near) + torch.exp(-near))

    return sum(probability(x, y) for x in a for y in b) / (len(a) * len(b))


SIMILARITIES: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "cosine": cosine,
    "mil": mil,
    "chamfer": chamfer,
    "smooth_chamfer": smooth_chamfer,
    "soft_maximum": soft_maximum_scores,
    "match_probability": match_probability,
}


# -------------------------------------------------------------------------------------------------------- objectives

Scores = list[list[Tensor]]
Truth = list[list[bool]]


def both_ways(scores: Scores, positives: Truth, one_way: Callable[[Scores, Truth], Any]) -> tuple[Any, Any]:
    turned = [list(column) for column in zip(*scores, strict=True)], [list(c) for c in zip(*positives, strict=True)]
    return one_way(scores, positives), one_way(*turned)


def triplet(config: dict[str, Any], scores: Scores, positives: Truth, epoch: int) -> Tensor:
    mining = config["mining"]
    if not isinstance(mining, str):
        mining = [name for start, name in mining if start <= epoch][-1]

    def one_way(scores: Scores, positives: Truth) -> Tensor:
        terms = []
        for row, truth in zip(scores, positives, strict=True):
            negatives = [s for s, match in zip(row, truth, strict=True) if not match]
            for match in (s for s, match in zip(row, truth, strict=True) if match):
                pressing = negatives if mining == "all" else [max(negatives)]
                terms += [torch.relu(config["margin"] + negative - match) for negative in pressing]
        return sum(terms) / (1 if config["reduction"] == "sum" else len(terms))

    return sum(both_ways(scores, positives, one_way))


def infonce(config: dict[str, Any], scores: Scores, positives: Truth, _: int) -> Tensor:
    tau = config["temperature"]

    def one_way(scores: Scores, positives: Truth) -> Tensor:
        terms = []
        for row, truth in zip(scores, positives, strict=True):
            negatives = sum(torch.exp(s / tau) for s, match in zip(row, truth, strict=True) if not match)
            for match in (torch.exp(s / tau) for s, match in zip(row, truth, strict=True) if match):
                terms.append(-torch.log(match / (match + negatives)))
        return sum(terms) / len(terms)

    return sum(both_ways(scores, positives, one_way)) / 2


def adopt(config: dict[str, Any], scores: Scores, positives: Truth, _: int) -> Tensor:
    variant, tau = config.get("variant", "annealed"), config["temperature"]

    def one_way(scores: Scores, positives: Truth) -> Tensor:
        k, terms = negatives_of_adopt(variant, scores, positives), []
        for row, truth in zip(scores, positives, strict=True):
            if variant == "official":
                order = sorted(range(len(row)), key=lambda t: 0.0 if truth[t] else row[t].item(), reverse=True)
                hardest = [row[t] + 0.2 for t in order[:k]]
            else:
                hardest = sorted((s for s, match in zip(row, truth, strict=True) if not match), reverse=True)[:k]
            against = sum(torch.exp(s / tau) for s in hardest)
            for match in (torch.exp(s / tau) for s, match in zip(row, truth, strict=True) if match):
                terms.append(-torch.log(match / (against if variant == "paper" else match + against)))
        return sum(terms) / len(terms)

    total = sum(both_ways(scores, positives, one_way))
    return total if variant == "paper" else total / 2


def negatives_of_adopt(variant: str, scores: Scores, positives: Truth) -> int:
    """K: how many negatives."""
    pairs = [(i, t) for i, row in enumerate(scores) for t in range(len(row))]
    value = {(i, t): scores[i][t].item() for i, t in pairs}
    matches = [(i, t) for i, t in pairs if positives[i][t]]
    size, most = len(scores[0]), max(row.count(False) for row in positives)
    align = sum(value[pair] for pair in matches) / len(matches)
    if variant == "annealed":
        rivals = [(value[i, n], value[i, t]) for i, t in matches for n in range(size) if not positives[i][n]]
        beaten = sum(rival < match for rival, match in rivals) / len(rivals)
        k = round(4 + min(1.0, 2 - 2 * beaten) * (most - 4))
    elif variant == "paper":
        uniform = math.log(sum(math.exp(value[pair]) for pair in pairs) / len(pairs))
        k = math.floor(size * math.cos((align + uniform) * math.pi / 4))
    else:
        uniform = sum(math.exp(0.0 if pair in matches else -value[pair]) for pair in pairs) / len(pairs)
        k = int(math.cos((align + uniform) ** 1.25) * size) + 1
    return max(1, min(k, most))


OBJECTIVES: dict[str, Callable[[dict[str, Any], Scores, Truth, int], Tensor]] = {
    "triplet": triplet,
    "infonce": infonce,
    "adopt": adopt,
}


def mmd(images: list[Tensor], texts: list[Tensor], _: Any) -> Tensor:
    x, y = torch.cat(images), torch.cat(texts)

    def kernel(a: Tensor, b: Tensor) -> Any:
        return 1.0 if a is b else torch.exp(-0.5 * (a - b).norm())

    def expected(one: list[Tensor], other: list[Tensor]) -> Any:
        return sum(kernel(a, b) for a in one for b in other) / (len(one) * len(other))

    one, other = list(x), list(y)
    return expected(one, one) - 2 * expected(one, other) + expected(other, other)


def diversity(images: list[Tensor], texts: list[Tensor], knobs: dict[str, Any]) -> Tensor:
    def spread(residual: Tensor) -> Any:
        r = [unit(row) for row in residual]
        pairs = [(a, b) for i, a in enumerate(r) for b in r[i + 1 :]]
        if knobs.get("form") == "gram":
            return torch.sqrt(2 * sum((a @ b) ** 2 for a, b in pairs)) / len(r) ** 2
        return sum(torch.exp(-2 * ((a - b) ** 2).sum()) for a, b in pairs) / len(pairs)

    return sum(spread(r) for r in images) / len(images) + sum(spread(r) for r in texts) / len(texts)


REGULARISERS: dict[str, Callable[..., Tensor]] = {"mmd": mmd, "diversity": diversity}


# ------------------------------------------------------------------------------------------------ the smallest pieces


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    y = x @ layer.weight.t()
    return y if layer.bias is None else y + layer.bias


def softmax(logits: Tensor) -> Tensor:
    e = torch.exp(logits - logits.detach().max())
    return e / e.sum()


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).sum())


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def batch_norm(norm: nn.BatchNorm1d, x: Tensor, together: Tensor) -> Tensor:
    """x normalised by the mean and variance of all rows `together`."""
    centre = sum(together) / len(together)
    variance = sum((row - centre) ** 2 for row in together) / len(together)
    return (x - centre) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def gru(module: nn.GRU, x: Tensor, way: str = "") -> Tensor:
    """(n, D) -> (n, H): the state after each step, from a state of zeros."""
    state, states = x.new_zeros(module.hidden_size), []
    for step in x:
        state = gru_step(module, f"_l0{way}", step, state)
        states.append(state)
    return torch.stack(states)


def gru_step(cell: nn.Module, suffix: str, x: Tensor, state: Tensor) -> Tensor:
    weights = {name: getattr(cell, f"{name}{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    from_input = (weights["weight_ih"] @ x + weights["bias_ih"]).chunk(3)
    from_state = (weights["weight_hh"] @ state + weights["bias_hh"]).chunk(3)
    reset = torch.sigmoid(from_input[0] + from_state[0])
    update = torch.sigmoid(from_input[1] + from_state[1])
    new = torch.tanh(from_input[2] + reset * from_state[2])
    return (1 - update) * new + update * state


def transformer_layer(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    def attention(rows: Tensor) -> Tensor:
        part = layer.self_attn
        q, k, v = (rows @ part.in_proj_weight.t() + part.in_proj_bias).chunk(3, dim=1)
        width, heads = q.shape[1] // part.num_heads, []
        for head in range(part.num_heads):
            own = slice(head * width, (head + 1) * width)
            weights = [softmax(k[:, own] @ query / math.sqrt(width)) for query in q[:, own]]
            heads.append(torch.stack([row @ v[:, own] for row in weights]))
        return linear(part.out_proj, torch.cat(heads, dim=1))

    def norm(which: nn.LayerNorm, rows: Tensor) -> Tensor:
        return torch.stack([layer_norm(which, row) for row in rows])

    def feed(rows: Tensor) -> Tensor:
        return linear(layer.linear2, torch.relu(linear(layer.linear1, rows)))

    if layer.norm_first:
        x = x + attention(norm(layer.norm1, x))
        return x + feed(norm(layer.norm2, x))
    x = norm(layer.norm1, x + attention(x))
    return norm(layer.norm2, x + feed(x))


def sines(positions: list[float], dim: int) -> Tensor:
    """Sine in even columns, cosine in odd ones, ever slower."""
    rows = []
    for p in positions:
        angles = [p / 10_000 ** (2 * (j // 2) / dim) for j in range(dim)]
        rows.append([math.sin(a) if j % 2 == 0 else math.cos(a) for j, a in enumerate(angles)])
    return torch.tensor(rows, dtype=torch.double)


# ----------------------------------------------------------------------------------------------------------- labels


def label_loss(config: Any, images: Any, texts: Any, labels: Any, positives: Any) -> Tensor:
    official, sides = config.get("variant") == "official", []
    for items, own in ((images, labels[0]), (texts, labels[1])):
        terms = []
        for (_, residual, logits), flags in zip(items, own, strict=True):
            if official:
                terms.append(torch.log(1 + torch.exp(-(residual[0] * flags).sum())))
                continue
            p = torch.sigmoid(logits)
            terms.append(-(flags * torch.log(p) + (1 - flags) * torch.log(1 - p)).sum())
        sides.append(sum(terms) / len(terms))
    total = (sides[0] + sides[1]) / 2
    if config.get("eta"):
        apart = [
            ((torch.sigmoid(images[i][2]) - torch.sigmoid(texts[t][2])) ** 2).sum()
            for i, row in enumerate(positives)
            for t, match in enumerate(row)
            if match
        ]
        total = total + config["eta"] * sum(apart) / len(apart)
    return total


def dscmr(config: Any, images: Any, texts: Any, labels: Any, positives: Any) -> Tensor:
    total = 0.0
    for items, own in ((images, labels[0]), (texts, labels[1])):
        total = total + sum((item[2] - flags).norm() for item, flags in zip(items, own, strict=True)) / len(items)
    left, right = list(zip(images, labels[0], strict=True)), list(zip(texts, labels[1], strict=True))
    for ones, others in ((left, left), (left, right), (right, right)):
        terms = []
        for one, flags in ones:
            for other, theirs in others:
                c = unit(one[1][0]) @ unit(other[1][0]) / 2
                terms.append(torch.log(1 + torch.exp(c)) - bool((flags * theirs).sum() > 0) * c)
        total = total + config["discrimination"] * sum(terms) / len(terms)
    apart = [
        (images[i][1] - texts[t][1]).norm() for i, row in enumerate(positives) for t, match in enumerate(row) if match
    ]
    return total + config["invariance"] * sum(apart) / len(apart)


LABEL_OBJECTIVES: dict[str, Callable[..., Tensor]] = {"semantic_sharing": label_loss, "dscmr": dscmr}
