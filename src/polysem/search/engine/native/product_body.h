/* The matrix product of many queries and many items. Compiled like kernels_body.h, after it.

   With AVX2 the numbers are whole, of 16 bits: one instruction multiplies and adds twice as many of them as of floats.
   Rounding to 1 / FIXED_ONE costs a score some thousandths at most, which `Scoring.slack` knows; sums are exact, and fit
   32 bits because the vectors' norms are about 1. Elsewhere the numbers stay floats.

   Both sides are packed into panels (depth / DEEP, rows, DEEP): DEEP dimensions of every row, then the next. They are cut
   into quarters, by rows and by depth, and those again, because whole numbers allow Strassen's way to multiply quarters: an
   eighth less work, twice. */

#ifdef AVX2
typedef int16_t FN(number);
typedef v8u FN(sums);
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

/* Turns the vectors within each of LANES times sixteen dimensions that lie `apart`, all in the same way: inner products stay
   what they are, and a number that stands out is spread over sixteen, so that sums of many numbers fit. Without a scale. */
INLINE void FN(spread)(v8 *x) {
    for (int step = 1; step < SPREAD; step *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < SPREAD; i++)
            if (!(i & step)) {
                const v8 a = x[i], b = x[i + step];
                x[i] = a + b, x[i + step] = a - b;
            }
}

/* `count` rows of `width` numbers (NULL: zeros) -> a panel for each quarter of `depth` dimensions, `of_quarter` apart for the
   second half of each half, `of_half` for the second half. */
INLINE void FN(pack)(const char *const *rows, int count, int64_t width, int64_t depth, int type, int spread, FN(number) *to, int64_t of_quarter, int64_t of_half) {
    const float scale = FN(scale_of)(type);
    const int64_t size = size_of(type), quarter = depth / 4, apart = depth / SPREAD;
    if (spread) {
        for (int r = 0; r < count; r++)
            for (int64_t d = 0; d < apart; d += LANES) {
                v8 x[SPREAD];
                for (int i = 0; i < SPREAD; i++) x[i] = rows[r] ? FN(load)(rows[r] + (i * apart + d) * size, type) * (scale / 4) : (v8){0};
                FN(spread)(x);
#pragma GCC unroll 16
                for (int i = 0; i < SPREAD; i++)
                    FN(put)(x[i], to + i / 8 * of_half + i / 4 % 2 * of_quarter + (i % 4 * apart + d) * count + r * DEEP, count);
            }
        return;
    }
    for (int part = 0; part < 4; part++)
        for (int64_t from = 0; from < quarter; from += 2 * LANES) /* as much as the processor reads of a row at once */
            for (int r = 0; r < count; r++)
                for (int64_t d = from; d < from + 2 * LANES && d < quarter; d += LANES) {
                    const int64_t at = part * quarter + d;
                    v8 x = {0};
                    if (rows[r] && at + LANES <= width) x = FN(load)(rows[r] + at * size, type) * scale;
                    else if (rows[r] && at < width) x = FN(load_tail)(rows[r] + at * size, width - at, type) * scale;
                    FN(put)(x, to + part / 2 * of_half + part % 2 * of_quarter + d * count + r * DEEP, count);
                }
}

/* Quarters of quarters: (2, 2, rows), (2, 2, depth). What is multiplied are quarters of both sides, numbered row by row, and
   sums of two of them, and of those again quarters and sums: factor f * FACTORS + g is part g of part f. */
typedef struct {
    int8_t left, right, to, also, sign; /* left * right is added to a quarter of the products; also: to another, sign: or taken away */
} FN(Product);
#define NONE -1
static const FN(Product) FN(plain)[] = {{0, 0, 0, NONE, 0}, {1, 2, 0, NONE, 0}, {0, 1, 1, NONE, 0}, {1, 3, 1, NONE, 0},
                                        {2, 0, 2, NONE, 0}, {3, 2, 2, NONE, 0}, {2, 1, 3, NONE, 0}, {3, 3, 3, NONE, 0}};
#ifdef AVX2
/* Strassen's seven for eight, twice: whole numbers lose nothing in it, as long as the factors fit 16 bits. The products may
   well leave their 32 bits on the way: what they add up to does not, and only that counts. */
#define FACTORS 9
static const FN(Product) FN(strassen)[] = {{4, 4, 0, 3, 1}, {5, 0, 2, 3, -1}, {0, 5, 1, 3, 1}, {3, 6, 0, 2, 1},
                                           {6, 3, 1, 0, -1}, {7, 7, 3, NONE, 0}, {8, 8, 0, NONE, 0}};
static const int8_t FN(left_sums)[][3] = {{0, 3, 1}, {2, 3, 1}, {0, 1, 1}, {2, 0, -1}, {1, 3, -1}}; /* factors 4 to 8 */
static const int8_t FN(right_sums)[][3] = {{0, 3, 1}, {1, 3, -1}, {2, 0, -1}, {0, 1, 1}, {2, 3, 1}};

/* Sums of two of the first four of factors that lie `apart`, `size` numbers each. Returns whether all fit. */
static int FN(add_up)(FN(number) *factors, int64_t apart, int64_t size, const int8_t sums[][3]) {
    __m256i most = _mm256_setzero_si256(), least = most;
    for (int i = 0; i < FACTORS - 4; i++) {
        const FN(number) *a = factors + sums[i][0] * apart, *b = factors + sums[i][1] * apart;
        FN(number) *to = factors + (4 + i) * apart;
        for (int64_t at = 0; at < size; at += 2 * LANES) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)(a + at)), y = _mm256_loadu_si256((const __m256i *)(b + at));
            const __m256i sum = sums[i][2] > 0 ? _mm256_adds_epi16(x, y) : _mm256_subs_epi16(x, y);
            most = _mm256_max_epi16(most, sum), least = _mm256_min_epi16(least, sum);
            _mm256_storeu_si256((__m256i *)(to + at), sum);
        }
    }
    const __m256i over = _mm256_or_si256(_mm256_cmpeq_epi16(most, _mm256_set1_epi16(INT16_MAX)), _mm256_cmpeq_epi16(least, _mm256_set1_epi16(INT16_MIN)));
    return _mm256_testz_si256(over, over);
}

/* Factors of quarters of `size` numbers each, then those of each of these that is multiplied. */
static int FN(add_up_twice)(FN(number) *factors, int64_t size, const int8_t sums[][3]) {
    int fits = FN(add_up)(factors, FACTORS * size, 4 * size, sums);
    for (int f = 0; f < FACTORS; f++)
        if (f != 1 && f != 2) fits &= FN(add_up)(factors + f * FACTORS * size, size, size, sums);
    return fits;
}
#else
#define FACTORS 4
#endif

/* Whether both sides are to be spread: sketches are not, and what does not divide evenly. */
INLINE int FN(spreads)(const Task *t, int64_t depth) {
#ifdef AVX2
    return t->type != INT8 && t->D == depth && depth % (SPREAD * LANES) == 0;
#else
    (void)t, (void)depth;
    return 0;
#endif
}

/* `count` queries from `first` on -> the factors of their vectors, six to a panel, rows beyond the last zero. Returns whether
   the factors fit. */
static int FN(pack_queries)(const Task *t, int64_t first, int64_t count, int64_t panels, int64_t depth, int spread, FN(number) *factors) {
    const int64_t L = t->L, fours = (L + 3) / 4 * 4, size = panels / 4 * QUERY_ROWS * (depth / 4);
    for (int64_t p = 0; p < panels; p++) {
        const char *rows[QUERY_ROWS] = {0};
        for (int64_t r = 0; r < QUERY_ROWS; r++) {
            const int64_t row = p * QUERY_ROWS + r;
            if (row < count * L) rows[r] = (const char *)(t->query + ((first + row / L) * fours + row % L) * t->padded);
        }
        const int64_t block = p / (panels / 4);
        FN(number) *to = factors + (block / 2 * 2 * FACTORS + block % 2 * 2) * size + p % (panels / 4) * QUERY_ROWS * (depth / 4);
        FN(pack)(rows, QUERY_ROWS, t->padded, depth, FLOAT32, spread, to, size, FACTORS * size);
    }
#ifdef AVX2
    return FN(add_up_twice)(factors, size, FN(left_sums));
#else
    return 0;
#endif
}

/* Items from `first` on -> the factors of their vectors: a panel for the k-th of sixteen items, items beyond the last zero. */
INLINE int FN(pack_items_type)(const Task *t, int64_t first, int64_t last, int64_t panels, int64_t depth, FN(number) *factors, int type) {
    const int64_t K = t->K, D = t->D, size = panels / 4 * PANEL * (depth / 4);
    for (int64_t j = 0; j < panels; j++) {
        const char *rows[PANEL] = {0};
        for (int64_t lane = 0; lane < PANEL; lane++) {
            const int64_t item = first + j / K * PANEL + lane;
            if (item < last) rows[lane] = (const char *)t->items + (item * K + j % K) * D * size_of(type);
        }
        const int64_t block = j / (panels / 4);
        FN(number) *to = factors + (block / 2 * FACTORS + block % 2) * size + j % (panels / 4) * PANEL * (depth / 4);
        FN(pack)(rows, PANEL, D, depth, type, FN(spreads)(t, depth), to, 2 * size, 2 * FACTORS * size);
    }
#ifdef AVX2
    return FN(add_up_twice)(factors, size, FN(right_sums));
#else
    return 0;
#endif
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

/* 6 query rows by 16 items over `depth` dimensions. What is needed `soon` is asked for on the way, a quarter of a panel. Needs
   every register for itself: not inlined. */
static __attribute__((noinline)) void FN(micro)(const FN(number) *a, const FN(number) *b, int64_t depth, const FN(number) *soon, FN(sums) *tile) {
    FN(sums) acc[QUERY_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++) acc[r][0] = acc[r][1] = (FN(sums)){0};
    for (int64_t d = 0; d < depth; d += DEEP, a += QUERY_ROWS * DEEP, b += PANEL * DEEP, soon += PANEL * DEEP / 4) {
        FN(sums) left, right;
        __builtin_prefetch(soon);
        memcpy(&left, b, sizeof left), memcpy(&right, b + LANES * DEEP, sizeof right);
#pragma GCC unroll 6
        for (int r = 0; r < QUERY_ROWS; r++) FN(add_products)(acc[r], a + r * DEEP, left, right);
    }
#pragma GCC unroll 6
    for (int r = 0; r < QUERY_ROWS; r++) tile[2 * r] = acc[r][0], tile[2 * r + 1] = acc[r][1];
}

/* Where products go: to so many places, added or taken away. */
typedef struct {
    int count, sign[4];
    float *to[4];
} FN(Targets);

/* What `micro` found -> all its targets, `at` from their beginnings. */
INLINE void FN(settle)(const FN(sums) *tile, const FN(Targets) *targets, int64_t at, int64_t of_row) {
    for (int i = 0; i < targets->count; i++) {
        float *c = targets->to[i] + at;
        const int add = targets->sign[i] > 0;
#pragma GCC unroll 12
        for (int v = 0; v < 2 * QUERY_ROWS; v++) {
            float *to = c + v / 2 * of_row + v % 2 * LANES;
            FN(sums) sum;
            memcpy(&sum, to, sizeof sum);
            sum = add ? sum + tile[v] : sum - tile[v];
            memcpy(to, &sum, sizeof sum);
        }
    }
}

/* One product of quarters of quarters: part `inner` of part `outer`. */
static FN(Targets) FN(targets_of)(FN(Product) outer, FN(Product) inner, float *c, int64_t rows, int64_t columns) {
    const int outers[] = {outer.to, outer.also}, inners[] = {inner.to, inner.also};
    const int outer_signs[] = {1, outer.sign}, inner_signs[] = {1, inner.sign};
    FN(Targets) found = {0};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const int o = outers[i], p = inners[j];
            if (o == NONE || p == NONE) continue;
            found.sign[found.count] = outer_signs[i] * inner_signs[j];
            found.to[found.count++] = c + (o / 2 * 2 + p / 2) * (rows / 4) * columns + (o % 2 * 2 + p % 2) * (columns / 4);
        }
    return found;
}

/* All products of the factors of some queries and some items -> c, (panels * 6, columns). */
static void FN(multiply)(const FN(number) *left, const FN(number) *right, int64_t panels, int64_t across, int64_t depth, int fits, float unit, float *c) {
    const int64_t rows = panels * QUERY_ROWS, columns = across * PANEL, quarter = depth / 4;
    const int64_t left_size = rows / 4 * quarter, right_size = columns / 4 * quarter;
    const FN(Product) *products = FN(plain);
    int count = 8;
#ifdef AVX2
    if (fits) products = FN(strassen), count = 7;
#endif
    (void)fits;
    memset(c, 0, sizeof *c * (size_t)(rows * columns));
    for (int i = 0; i < count * count; i++) {
        const FN(Product) outer = products[i / count], inner = products[i % count];
        const FN(Targets) targets = FN(targets_of)(outer, inner, c, rows, columns);
        const FN(number) *a = left + (outer.left * FACTORS + inner.left) * left_size, *b = right + (outer.right * FACTORS + inner.right) * right_size;
        const FN(Product) next_outer = products[(i + 1) % (count * count) / count], next_inner = products[(i + 1) % count];
        const FN(number) *next = right + (next_outer.right * FACTORS + next_inner.right) * right_size;
        for (int64_t d = 0; d < quarter; d += DEPTH)
            for (int64_t j = 0; j < across / 4; j++) {
                const FN(number) *soon = j + 1 < across / 4 ? b + ((j + 1) * quarter + d) * PANEL : next;
                for (int64_t r = 0; r < panels / 4; r++) {
                    FN(sums) tile[2 * QUERY_ROWS];
                    FN(micro)(a + (r * quarter + d) * QUERY_ROWS, b + (j * quarter + d) * PANEL, quarter - d < DEPTH ? quarter - d : DEPTH, soon + r % 4 * quarter * PANEL / 4, tile);
                    FN(settle)(tile, &targets, r * QUERY_ROWS * columns + j * PANEL, columns);
                }
            }
    }
    for (int64_t at = 0; at < rows * columns; at += LANES) {
        FN(sums) sums;
        memcpy(&sums, c + at, sizeof sums);
#ifdef AVX2
        *(v8_any *)(c + at) = __builtin_convertvector((v8i)sums, v8) * unit;
#else
        *(v8_any *)(c + at) = sums * unit;
#endif
    }
}
