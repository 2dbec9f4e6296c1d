/* Many queries: a matrix product with the score at its end. Compiled like kernels_body.h, after it.

   With AVX2 the numbers are whole, of 16 bits: one instruction multiplies and adds twice as many of them as of floats.
   Rounding to 1 / FIXED_ONE costs a score some thousandths at most, which `Scoring.slack` knows; sums are exact, and fit
   32 bits because the vectors' norms are about 1. Elsewhere the numbers stay floats.

   Both sides are packed into panels (depth / DEEP, rows, DEEP): DEEP dimensions of every row, then the next. */

#ifdef AVX2
typedef int16_t FN(number);
typedef v8i FN(sums);
#define DEEP 2
#else
typedef float FN(number);
typedef v8 FN(sums);
#define DEEP 1
#endif
#define DEPTH (DEPTH_BYTES / (int64_t)sizeof(FN(number)))

/* What a unit of the numbers of this type is multiplied by; sketches are whole already. */
INLINE float FN(scale_of)(int type) {
#ifdef AVX2
    return type == INT8 ? 1.0f : FIXED_ONE;
#else
    (void)type;
    return 1.0f;
#endif
}

/* Eight dimensions of one of `rows` rows, to where its numbers lie in the panel. */
INLINE void FN(put)(v8 x, float scale, FN(number) *to, int64_t rows) {
#ifdef AVX2
    const __m256i whole = _mm256_cvtps_epi32((__m256)(x * scale));
    const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    int32_t four[4];
    memcpy(four, &pairs, sizeof four);
    for (int i = 0; i < LANES / DEEP; i++) memcpy(to + i * rows * DEEP, four + i, sizeof *four);
#else
    for (int i = 0; i < LANES; i++) to[i * rows] = x[i] * scale;
#endif
}

/* `count` queries from `first` on -> panels of six of their vectors, rows beyond the last zero. */
static void FN(pack_queries)(const Task *t, int64_t first, int64_t count, FN(number) *packed) {
    const int64_t L = t->L, depth = t->padded, fours = (L + 3) / 4 * 4;
    for (int64_t row = 0; row < (count * L + QUERY_ROWS - 1) / QUERY_ROWS * QUERY_ROWS; row++) {
        const float *vector = t->query + ((first + row / L) * fours + row % L) * depth;
        FN(number) *to = packed + row / QUERY_ROWS * QUERY_ROWS * depth + row % QUERY_ROWS * DEEP;
        for (int64_t d = 0; d < depth; d += LANES) {
            v8 x = {0};
            if (row < count * L) x = *(const v8_any *)(vector + d);
            FN(put)(x, FN(scale_of)(FLOAT32), to + d * QUERY_ROWS, QUERY_ROWS);
        }
    }
}

/* Sixteen items from `first` on -> a panel for each of their K vectors, items beyond the last zero. */
INLINE void FN(pack_items_type)(const Task *t, int64_t first, int64_t last, FN(number) *packed, int type) {
    const int64_t K = t->K, D = t->D, depth = t->padded, size = size_of(type);
    for (int64_t k = 0; k < K; k++)
        for (int64_t lane = 0; lane < PANEL; lane++) {
            const char *row = (const char *)t->items + ((first + lane) * K + k) * D * size;
            FN(number) *to = packed + k * PANEL * depth + lane * DEEP;
            for (int64_t d = 0; d < depth; d += LANES) {
                v8 y = {0};
                if (first + lane < last) y = d + LANES <= D ? FN(load)(row + d * size, type) : FN(load_tail)(row + d * size, D - d, type);
                FN(put)(y, FN(scale_of)(type), to + d * PANEL, PANEL);
            }
        }
}

static void FN(pack_items)(const Task *t, int64_t first, int64_t last, FN(number) *packed) {
    if (t->type == FLOAT32) FN(pack_items_type)(t, first, last, packed, FLOAT32);
    else if (t->type == FLOAT16) FN(pack_items_type)(t, first, last, packed, FLOAT16);
    else FN(pack_items_type)(t, first, last, packed, INT8);
}

/* DEEP dimensions of one query row with those of eight items. */
INLINE FN(sums) FN(add_products)(FN(sums) sums, const FN(number) *a, FN(sums) items) {
#ifdef AVX2
    /* In one piece: left to itself gcc puts all products before all sums, and runs out of registers. */
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    v8i query = (v8i)_mm256_set1_epi32(pair), product;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(query), "x"(items));
    return sums;
#else
    return sums + *a * items;
#endif
}

/* 6 query rows by 16 items over `depth` dimensions, added to c unless they are the first; in their unit if the last. Needs
   every register for itself: not inlined. */
static __attribute__((noinline)) void FN(micro)(const FN(number) *a, const FN(number) *b, int64_t depth, float *c, int64_t of_row, int first, int last, float unit) {
    FN(sums) acc[QUERY_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++) acc[r][0] = acc[r][1] = (FN(sums)){0};
    for (int64_t d = 0; d < depth; d += DEEP, a += QUERY_ROWS * DEEP, b += PANEL * DEEP) {
        FN(sums) left, right;
        memcpy(&left, b, sizeof left), memcpy(&right, b + LANES * DEEP, sizeof right);
#pragma GCC unroll 6
        for (int r = 0; r < QUERY_ROWS; r++) {
            acc[r][0] = FN(add_products)(acc[r][0], a + r * DEEP, left);
            acc[r][1] = FN(add_products)(acc[r][1], a + r * DEEP, right);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            float *to = c + r * of_row + half * LANES;
            FN(sums) before;
            memcpy(&before, to, sizeof before);
            if (!first) acc[r][half] += before;
            if (last) *(v8_any *)to = __builtin_convertvector(acc[r][half], v8) * unit;
            else memcpy(to, &acc[r][half], sizeof before);
        }
}

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

static int FN(batch)(const Task *t, int64_t queries, int64_t first, int64_t last, int64_t stride, float *scores) {
    const int64_t K = t->K, L = t->L, D = t->padded, fours = (L + 3) / 4 * 4;
    const int64_t group = L >= GROUP_ROWS ? 1 : GROUP_ROWS / L; /* queries at once */
    const int64_t blocks = K >= BLOCK_PANELS ? 1 : BLOCK_PANELS / K, columns = blocks * K * PANEL; /* items at once / 16 */
    const int64_t panels = (group * L + QUERY_ROWS - 1) / QUERY_ROWS, group_size = panels * QUERY_ROWS * D;
    const int64_t groups = (queries + group - 1) / group;
    const float unit = 1 / (FN(scale_of)(FLOAT32) * FN(scale_of)(t->type));
    FN(number) *packed = malloc(sizeof *packed * (size_t)(groups * group_size));
    FN(number) *items = malloc(sizeof *items * (size_t)(columns * D));
    float *sides = malloc(sizeof(float) * (size_t)(columns * 3));
    float *c = malloc(sizeof(float) * (size_t)(panels * QUERY_ROWS * columns));
    const int failed = !packed || !items || !sides || !c;
    for (int64_t g = 0; g < groups && !failed; g++)
        FN(pack_queries)(t, g * group, queries - g * group < group ? queries - g * group : group, packed + g * group_size);
    for (int64_t start = first; start < last && !failed; start += blocks * PANEL) {
        int64_t used = (last - start + PANEL - 1) / PANEL;
        if (used > blocks) used = blocks;
        for (int64_t b = 0; b < used; b++) {
            FN(pack_items)(t, start + b * PANEL, last, items + b * K * PANEL * D);
            for (int64_t i = 0; t->side && i < 3 * K * PANEL; i++) {
                int64_t item = start + b * PANEL + i % PANEL;
                sides[b * 3 * K * PANEL + i] = item < last ? t->side[item * 3 * K + i / PANEL] : 0;
            }
        }
        for (int64_t g = 0; g < groups; g++) {
            const int64_t here = queries - g * group < group ? queries - g * group : group;
            const FN(number) *a = packed + g * group_size;
            for (int64_t d = 0; d < D; d += DEPTH)
                for (int64_t j = 0; j < used * K; j++)
                    for (int64_t p = 0; p * QUERY_ROWS < here * L; p++)
                        FN(micro)(a + (p * D + d) * QUERY_ROWS, items + (j * D + d) * PANEL, D - d < DEPTH ? D - d : DEPTH,
                                  c + p * QUERY_ROWS * columns + j * PANEL, columns, d == 0, d + DEPTH >= D, unit);
            for (int64_t q = g * group; q < g * group + here; q++)
                for (int64_t b = 0; b < used; b++) {
                    float *block = c + (q - g * group) * L * columns + b * K * PANEL;
                    if (t->side) FN(loosen)(t, t->norms + q * 2 * fours, sides + b * 3 * K * PANEL, block, columns);
                    for (int64_t half = 0; half < PANEL; half += LANES) {
                        int64_t at = start + b * PANEL + half, count = last - at < LANES ? last - at : LANES;
                        v8 score = FN(score)(block + half, columns, PANEL, t);
                        if (count == LANES) *(v8_any *)(scores + q * stride + at) = score;
                        else
                            for (int64_t lane = 0; lane < count; lane++) scores[q * stride + at + lane] = score[lane];
                    }
                }
        }
    }
    free(packed), free(items), free(sides), free(c);
    return failed ? -1 : 0;
}
#undef DEEP
#undef DEPTH
