/* Many queries: their products with the items, and the score at its end. Compiled like kernels_body.h, after product_body.h. */

/* One query's products with sixteen items -> upper bounds of them, in place. */
INLINE void FN(loosen)(const Task *t, const float *norms, const float *sides, float *c, int64_t of_l) {
    for (int64_t l = 0; l < t->L; l++) {
        const float within = norms[l / 4 * 8 + l % 4], outside = norms[l / 4 * 8 + l % 4 + 4];
        for (int64_t k = 0; k < t->K; k++)
            for (int64_t i = k * PANEL; i < (k + 1) * PANEL; i += LANES) {
                v8_any *at = (v8_any *)(c + l * of_l + i);
                const v8 scale = *(const v8_any *)(sides + i), error = *(const v8_any *)(sides + t->K * PANEL + i);
                const v8 residual = *(const v8_any *)(sides + 2 * t->K * PANEL + i);
                v8 bound = *at * scale + within * error + outside * residual;
                *at = -FN(max)(-bound, bound * 0 - t->cap);
            }
    }
}

/* Items packed together: their factors, what their sketches need for bounds, how many sixteens of items and panels of vectors
   they are, and whether sums of their numbers fit. */
typedef struct {
    FN(number) *factors;
    float *sides;
    int64_t sixteens, panels;
    int fits;
} FN(Block);

/* Products of `count` queries with the items from `start` on -> scores. */
static void FN(score_block)(const Task *t, int64_t first, int64_t count, int64_t start, int64_t last, const FN(Block) *items, float *c, int64_t stride, float *scores) {
    const int64_t K = t->K, L = t->L, fours = (L + 3) / 4 * 4, columns = items->panels * PANEL;
    for (int64_t q = 0; q < count; q++)
        for (int64_t b = 0; b < items->sixteens; b++) {
            float *block = c + q * L * columns + b * K * PANEL;
            if (t->side) FN(loosen)(t, t->norms + (first + q) * 2 * fours, items->sides + b * 3 * K * PANEL, block, columns);
            for (int64_t half = 0; half < PANEL; half += LANES) {
                const int64_t at = start + b * PANEL + half, left = last - at < LANES ? last - at : LANES;
                float *to = scores + (first + q) * stride + at;
                v8 score = FN(score)(block + half, columns, PANEL, t);
                if (left == LANES) *(v8_any *)to = score;
                else
                    for (int64_t lane = 0; lane < left; lane++) to[lane] = score[lane];
            }
        }
}

static void FN(pack_block)(const Task *t, int64_t start, int64_t stop, int64_t depth, FN(Block) *block) {
    const int64_t K = t->K;
    block->sixteens = (stop - start + PANEL - 1) / PANEL;
    block->panels = (block->sixteens * K + 3) / 4 * 4;
    block->fits = FN(pack_items)(t, start, stop, block->panels, depth, block->factors);
    for (int64_t i = 0; t->side && i < block->sixteens * 3 * K * PANEL; i++) {
        const int64_t item = start + i / (3 * K * PANEL) * PANEL + i % PANEL;
        block->sides[i] = item < stop ? t->side[item * 3 * K + i / PANEL % (3 * K)] : 0;
    }
}

/* As many items are packed at a time as the last cache holds; each group of queries meets all of those. */
static int FN(batch)(const Task *t, int64_t from, int64_t to, int64_t first, int64_t last, int64_t stride, float *scores) {
    const int64_t K = t->K, L = t->L, depth = (t->padded + 31) / 32 * 32;
    const int64_t most = L >= GROUP_ROWS ? 1 : GROUP_ROWS / L, group = to - from < most ? to - from : most; /* queries at once */
    const int64_t blocks = K >= BLOCK_PANELS ? 1 : BLOCK_PANELS / K, step = blocks * PANEL;                 /* items at once */
    const int64_t panels = (group * L + 4 * QUERY_ROWS - 1) / (4 * QUERY_ROWS) * 4, across = (blocks * K + 3) / 4 * 4;
    const int64_t columns = across * PANEL, group_size = panels * QUERY_ROWS * depth / 16 * FACTORS * FACTORS;
    const int64_t block_size = columns * depth / 16 * FACTORS * FACTORS, fit = CACHE_BYTES / (columns * depth * 3 * (int64_t)sizeof(FN(number)));
    int64_t held = (last - first + step - 1) / step; /* blocks at once */
    if (held > fit) held = fit > 1 ? fit : 1;
    const float unit = 1 / (FN(scale_of)(FLOAT32) * FN(scale_of)(t->type));
    FN(number) *left = room(group_size * (int64_t)sizeof *left), *right = room(held * block_size * (int64_t)sizeof *right);
    float *sides = room(held * columns * 3 * (int64_t)sizeof *sides), *c = room(panels * QUERY_ROWS * columns * (int64_t)sizeof *c);
    FN(Block) *block = room(held * (int64_t)sizeof *block);
    const int failed = !left || !right || !sides || !c || !block;
    for (int64_t start = first; start < last && !failed; start += held * step) {
        for (int64_t b = 0; b < held && start + b * step < last; b++) {
            const int64_t at = start + b * step;
            block[b] = (FN(Block)){right + b * block_size, sides + b * columns * 3, 0, 0, 0};
            FN(pack_block)(t, at, last - at < step ? last : at + step, depth, block + b);
        }
        for (int64_t q = from; q < to; q += group) {
            const int64_t here = to - q < group ? to - q : group;
            const int fits = FN(pack_queries)(t, q, here, panels, depth, FN(spreads)(t, depth), left);
            for (int64_t b = 0; b < held && start + b * step < last; b++) {
                FN(multiply)(left, block[b].factors, panels, block[b].panels, depth, fits && block[b].fits, unit, c);
                FN(score_block)(t, q, here, start + b * step, last, block + b, c, stride, scores);
            }
        }
    }
    free(left), free(right), free(sides), free(c), free(block);
    return failed ? -1 : 0;
}
#undef DEEP
#undef DEPTH
#undef FACTORS
#undef NONE
