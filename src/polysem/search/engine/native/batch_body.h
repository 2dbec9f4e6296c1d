/* Many queries: a matrix product with the score at its end. Compiled like kernels_body.h, after it.

   With AVX2 the numbers are whole, of 16 bits: one instruction multiplies and adds twice as many of them as of floats.
   Rounding to 1 / FIXED_ONE costs a score some thousandths at most, which `Scoring.slack` knows; sums are exact, and fit
   32 bits because the vectors' norms are about 1. Elsewhere the numbers stay floats.

   Both sides are packed into panels (depth / DEEP, rows, DEEP): DEEP dimensions of every row, then the next. They are cut
   into quarters, by rows and by depth, because whole numbers allow Strassen's way to multiply those: an eighth less work. */

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
INLINE void FN(put)(v8 x, FN(number) *to, int64_t rows) {
#ifdef AVX2
    const __m256i whole = _mm256_cvtps_epi32((__m256)x);
    const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    int32_t four[4];
    memcpy(four, &pairs, sizeof four);
    for (int i = 0; i < LANES / DEEP; i++) memcpy(to + i * rows * DEEP, four + i, sizeof *four);
#else
    for (int i = 0; i < LANES; i++) to[i * rows] = x[i];
#endif
}

/* `count` rows of `width` numbers (NULL: zeros) -> a panel for each half of `depth` dimensions. Returns the largest number. */
INLINE v8 FN(pack)(const char *const *rows, int count, int64_t width, int64_t depth, int type, v8 most, FN(number) *half, int64_t of_half) {
    const float scale = FN(scale_of)(type);
    const int64_t size = size_of(type);
    for (int64_t d = 0; d < depth; d += 2 * LANES) /* as much as the processor reads of a row at once */
        for (int r = 0; r < count; r++)
            for (int64_t at = d; at < d + 2 * LANES; at += LANES) {
                v8 x = {0};
                if (rows[r] && at + LANES <= width) x = FN(load)(rows[r] + at * size, type) * scale;
                else if (rows[r] && at < width) x = FN(load_tail)(rows[r] + at * size, width - at, type) * scale;
                most = FN(max)(most, FN(max)(x, -x));
                FN(put)(x, half + (at < depth / 2 ? at : of_half + at - depth / 2) * count + r * DEEP, count);
            }
    return most;
}

/* What is multiplied: quarters of both sides, numbered row by row, and sums of two of them. */
typedef struct {
    int8_t left, right, to, also, sign; /* left * right is added to a quarter of the products; also: to another, sign: or taken away */
} FN(Product);
#define NONE -1
static const FN(Product) FN(plain)[] = {{0, 0, 0, NONE, 0}, {1, 2, 0, NONE, 0}, {0, 1, 1, NONE, 0}, {1, 3, 1, NONE, 0},
                                        {2, 0, 2, NONE, 0}, {3, 2, 2, NONE, 0}, {2, 1, 3, NONE, 0}, {3, 3, 3, NONE, 0}};
#ifdef AVX2
/* Strassen's seven for eight: whole numbers lose nothing in it, as long as the sums fit 16 bits. */
#define FACTORS 9
static const FN(Product) FN(strassen)[] = {{4, 4, 0, 3, 1}, {5, 0, 2, 3, -1}, {0, 5, 1, 3, 1}, {3, 6, 0, 2, 1},
                                           {6, 3, 1, 0, -1}, {7, 7, 3, NONE, 0}, {8, 8, 0, NONE, 0}};
static const int8_t FN(left_sums)[][3] = {{0, 3, 1}, {2, 3, 1}, {0, 1, 1}, {2, 0, -1}, {1, 3, -1}}; /* factors 4 to 8 */
static const int8_t FN(right_sums)[][3] = {{0, 3, 1}, {1, 3, -1}, {2, 0, -1}, {0, 1, 1}, {2, 3, 1}};

static void FN(add_up)(FN(number) *factors, int64_t size, const int8_t sums[][3]) {
    for (int i = 0; i < FACTORS - 4; i++) {
        const FN(number) *a = factors + sums[i][0] * size, *b = factors + sums[i][1] * size;
        FN(number) *to = factors + (4 + i) * size;
        if (sums[i][2] > 0)
            for (int64_t at = 0; at < size; at++) to[at] = (FN(number))(a[at] + b[at]);
        else
            for (int64_t at = 0; at < size; at++) to[at] = (FN(number))(a[at] - b[at]);
    }
}
#else
#define FACTORS 4
#endif

INLINE float FN(largest_of)(v8 x) {
    float most = 0;
    for (int i = 0; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* `count` queries from `first` on -> the factors of their vectors, six to a panel, rows beyond the last zero. Returns whether
   sums of two numbers fit. */
static int FN(pack_queries)(const Task *t, int64_t first, int64_t count, int64_t panels, int64_t depth, FN(number) *factors) {
    const int64_t L = t->L, fours = (L + 3) / 4 * 4, size = panels / 2 * QUERY_ROWS * (depth / 2);
    v8 most = {0};
    for (int64_t p = 0; p < panels; p++) {
        const char *rows[QUERY_ROWS] = {0};
        for (int64_t r = 0; r < QUERY_ROWS; r++) {
            const int64_t row = p * QUERY_ROWS + r;
            if (row < count * L) rows[r] = (const char *)(t->query + ((first + row / L) * fours + row % L) * t->padded);
        }
        FN(number) *to = factors + p / (panels / 2) * 2 * size + p % (panels / 2) * QUERY_ROWS * (depth / 2);
        most = FN(pack)(rows, QUERY_ROWS, t->padded, depth, FLOAT32, most, to, size / QUERY_ROWS);
    }
#ifdef AVX2
    FN(add_up)(factors, size, FN(left_sums));
#endif
    return FN(largest_of)(most) < INT16_MAX / 2;
}

/* Items from `first` on -> the factors of their vectors: a panel for the k-th of sixteen items, items beyond the last zero. */
INLINE int FN(pack_items_type)(const Task *t, int64_t first, int64_t last, int64_t panels, int64_t depth, FN(number) *factors, int type) {
    const int64_t K = t->K, D = t->D, size = panels / 2 * PANEL * (depth / 2);
    v8 most = {0};
    for (int64_t j = 0; j < panels; j++) {
        const char *rows[PANEL] = {0};
        for (int64_t lane = 0; lane < PANEL; lane++) {
            const int64_t item = first + j / K * PANEL + lane;
            if (item < last) rows[lane] = (const char *)t->items + (item * K + j % K) * D * size_of(type);
        }
        FN(number) *to = factors + j / (panels / 2) * size + j % (panels / 2) * PANEL * (depth / 2);
        most = FN(pack)(rows, PANEL, D, depth, type, most, to, 2 * size / PANEL);
    }
#ifdef AVX2
    FN(add_up)(factors, size, FN(right_sums));
#endif
    return FN(largest_of)(most) < INT16_MAX / 2;
}

static int FN(pack_items)(const Task *t, int64_t first, int64_t last, int64_t panels, int64_t depth, FN(number) *factors) {
    if (t->type == FLOAT32) return FN(pack_items_type)(t, first, last, panels, depth, factors, FLOAT32);
    if (t->type == FLOAT16) return FN(pack_items_type)(t, first, last, panels, depth, factors, FLOAT16);
    return FN(pack_items_type)(t, first, last, panels, depth, factors, INT8);
}

/* DEEP dimensions of one query row with those of sixteen items. */
INLINE void FN(add_products)(FN(sums) *sums, const FN(number) *a, FN(sums) left, FN(sums) right) {
#ifdef AVX2
    /* In one piece: left to itself gcc puts all products before all sums, and runs out of registers. */
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    v8i query = (v8i)_mm256_set1_epi32(pair), product;
    __asm__("vpmaddwd %2, %4, %3\n\tvpmaddwd %2, %5, %2\n\tvpaddd %3, %0, %0\n\tvpaddd %2, %1, %1"
            : "+x"(sums[0]), "+x"(sums[1]), "+x"(query), "=&x"(product) : "x"(left), "x"(right));
#else
    sums[0] += *a * left, sums[1] += *a * right;
#endif
}

/* 6 query rows by 16 items over `depth` dimensions, added to c, and to `also` if there is one. Needs every register for
   itself: not inlined. */
static __attribute__((noinline)) void FN(micro)(const FN(number) *a, const FN(number) *b, int64_t depth, float *c, float *also, int sign, int64_t of_row) {
    FN(sums) acc[QUERY_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++) acc[r][0] = acc[r][1] = (FN(sums)){0};
    for (int64_t d = 0; d < depth; d += DEEP, a += QUERY_ROWS * DEEP, b += PANEL * DEEP) {
        FN(sums) left, right;
        memcpy(&left, b, sizeof left), memcpy(&right, b + LANES * DEEP, sizeof right);
#pragma GCC unroll 6
        for (int r = 0; r < QUERY_ROWS; r++) FN(add_products)(acc[r], a + r * DEEP, left, right);
    }
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int64_t at = r * of_row + half * LANES;
            FN(sums) before;
            memcpy(&before, c + at, sizeof before);
            before += acc[r][half];
            memcpy(c + at, &before, sizeof before);
            if (!also) continue;
            memcpy(&before, also + at, sizeof before);
            before += sign > 0 ? acc[r][half] : -acc[r][half];
            memcpy(also + at, &before, sizeof before);
        }
}

/* All products of the factors of some queries and some items -> c, (panels * 6, columns). */
static void FN(multiply)(const FN(number) *left, const FN(number) *right, int64_t panels, int64_t across, int64_t depth, int fits, float unit, float *c) {
    const int64_t columns = across * PANEL, half = depth / 2;
    const int64_t left_size = panels / 2 * QUERY_ROWS * half, right_size = across / 2 * PANEL * half;
    const FN(Product) *products = FN(plain);
    int count = 8;
#ifdef AVX2
    if (fits) products = FN(strassen), count = 7;
#endif
    (void)fits;
    memset(c, 0, sizeof *c * (size_t)(panels * QUERY_ROWS * columns));
    for (int i = 0; i < count; i++) {
        const FN(Product) p = products[i];
        float *to = c + p.to / 2 * (panels / 2) * QUERY_ROWS * columns + p.to % 2 * (columns / 2);
        float *also = p.also == NONE ? NULL : c + p.also / 2 * (panels / 2) * QUERY_ROWS * columns + p.also % 2 * (columns / 2);
        for (int64_t d = 0; d < half; d += DEPTH)
            for (int64_t j = 0; j < across / 2; j++)
                for (int64_t r = 0; r < panels / 2; r++) {
                    const int64_t at = r * QUERY_ROWS * columns + j * PANEL;
                    FN(micro)(left + p.left * left_size + (r * half + d) * QUERY_ROWS, right + p.right * right_size + (j * half + d) * PANEL,
                              half - d < DEPTH ? half - d : DEPTH, to + at, also ? also + at : NULL, p.sign, columns);
                }
    }
    for (int64_t at = 0; at < panels * QUERY_ROWS * columns; at += LANES) {
        FN(sums) sums;
        memcpy(&sums, c + at, sizeof sums);
        *(v8_any *)(c + at) = __builtin_convertvector(sums, v8) * unit;
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
    block->panels = (block->sixteens * K + 1) / 2 * 2;
    block->fits = FN(pack_items)(t, start, stop, block->panels, depth, block->factors);
    for (int64_t i = 0; t->side && i < block->sixteens * 3 * K * PANEL; i++) {
        const int64_t item = start + i / (3 * K * PANEL) * PANEL + i % PANEL;
        block->sides[i] = item < stop ? t->side[item * 3 * K + i / PANEL % (3 * K)] : 0;
    }
}

/* As many items are packed at a time as the last cache holds; each group of queries meets all of those. */
static int FN(batch)(const Task *t, int64_t from, int64_t to, int64_t first, int64_t last, int64_t stride, float *scores) {
    const int64_t K = t->K, L = t->L, depth = (t->padded + 15) / 16 * 16;
    const int64_t group = L >= GROUP_ROWS ? 1 : GROUP_ROWS / L;                             /* queries at once */
    const int64_t blocks = K >= BLOCK_PANELS ? 1 : BLOCK_PANELS / K, step = blocks * PANEL; /* items at once */
    const int64_t panels = (group * L + 2 * QUERY_ROWS - 1) / (2 * QUERY_ROWS) * 2, across = (blocks * K + 1) / 2 * 2;
    const int64_t columns = across * PANEL, group_size = panels * QUERY_ROWS * depth / 4 * FACTORS;
    const int64_t block_size = columns * depth / 4 * FACTORS, fit = CACHE_BYTES / (block_size * (int64_t)sizeof(FN(number)));
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
            const int fits = FN(pack_queries)(t, q, here, panels, depth, left);
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
