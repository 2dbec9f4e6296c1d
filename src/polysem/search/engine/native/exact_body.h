/* Exact products of those that are left, and norms. Compiled like kernels_body.h, after it. */

/* Four numbers of an item, as doubles. */
INLINE v4d FN(widen)(const char *from, int type) {
#ifdef AVX2
    if (type == FLOAT32) return (v4d)_mm256_cvtps_pd(_mm_loadu_ps((const float *)from));
    return (v4d)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)from)));
#else
    const v8 x = FN(load_tail)(from, 4, type);
    return (v4d){x[0], x[1], x[2], x[3]};
#endif
}

/* R vectors of items with four of a query, over dimensions first..last: four of every eight, the first or (half 1) the last.
   Added to sums. */
INLINE void FN(wide_sums)(const char *const *items, const double *query, int64_t padded, int64_t D, int64_t first, int64_t last, int half, int type, int R, v4d (*sums)[4]) {
    const int64_t size = size_of(type);
    v4d acc[2][4], x[4];
    memcpy(acc, sums, sizeof *sums * (size_t)R);
    for (int64_t d = first; d < last; d += LANES) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) x[c] = *(const v4d_any *)(query + c * padded + d + 4 * half);
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            v4d y;
            if (d + LANES <= D) {
                y = FN(widen)(items[r] + (d + 4 * half) * size, type);
            } else {
                char tail[32] = {0};
                memcpy(tail, items[r] + d * size, (size_t)((D - d) * size));
                y = FN(widen)(tail + 4 * half * size, type);
            }
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) acc[r][c] += y * x[c];
        }
    }
    memcpy(sums, acc, sizeof *sums * (size_t)R);
}

/* A product of two floats is exact in double, so only the order of the sums matters: eight partial sums, each over every
   eighth dimension from the first on, then halves added to halves. They are taken a stretch of dimensions at a time: so much
   of a query stays in the first cache for many vectors of items. */
INLINE void FN(products_type)(const Task *t, const double *query, const int64_t *rows, int64_t count, double *out, int type) {
    const int64_t K = t->K, L = t->L, D = t->D, padded = t->padded, bytes = D * size_of(type), ahead = STRETCH * size_of(type);
    v4d sums[2][TOGETHER][4];
    const char *items[TOGETHER];
    for (int64_t first = 0; first < count * K; first += TOGETHER) {
        const int64_t n = count * K - first < TOGETHER ? count * K - first : TOGETHER;
        for (int64_t i = 0; i < n; i++) items[i] = (const char *)t->items + (rows[(first + i) / K] * K + (first + i) % K) * bytes;
        for (int64_t l = 0; l < L; l += 4) {
            const double *x = query + l * padded;
            memset(sums, 0, sizeof sums);
            for (int64_t d = 0; d < padded; d += STRETCH) {
                const int64_t stop = padded - d < STRETCH ? padded : d + STRETCH;
                for (int64_t i = 0; i < n; i += 2) {
                    for (int64_t next = i + 2; next < n && next < i + 4; next++)
                        for (int64_t b = 0; b < ahead; b += 64) __builtin_prefetch(items[next] + d * size_of(type) + b);
                    for (int half = 0; half < 2; half++)
                        if (n - i > 1) FN(wide_sums)(items + i, x, padded, D, d, stop, half, type, 2, sums[half] + i);
                        else FN(wide_sums)(items + i, x, padded, D, d, stop, half, type, 1, sums[half] + i);
                }
            }
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < 4 && l + c < L; c++) {
                    const v4d s = sums[0][i][c] + sums[1][i][c];
                    out[(first + i) * L + l + c] = (s[0] + s[2]) + (s[1] + s[3]);
                }
        }
    }
}

static void FN(products)(const Task *t, const double *query, const int64_t *rows, int64_t count, double *out) {
    if (t->type == FLOAT32) FN(products_type)(t, query, rows, count, out, FLOAT32);
    else FN(products_type)(t, query, rows, count, out, FLOAT16);
}

/* Scores of items whose products are known, rounded to float. work: (K, L, 8). */
static void FN(judge)(const Task *t, const double *products, int64_t count, float *work, float *scores) {
    const int64_t pairs = t->K * t->L;
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t left = count - i < LANES ? count - i : LANES;
        for (int64_t lane = 0; lane < LANES; lane++)
            for (int64_t j = 0; j < pairs; j++) work[j * LANES + lane] = (float)products[(i + (lane < left ? lane : 0)) * pairs + j];
        v8 score = FN(score)(work, LANES, t->L * LANES, t);
        for (int64_t lane = 0; lane < left; lane++) scores[i + lane] = score[lane];
    }
}

/* The least and the largest squared norm of vectors first..last; NaN counts as infinite. */
INLINE void FN(norms_type)(const char *vectors, int64_t first, int64_t last, int64_t D, double *range, int type) {
    const int64_t size = size_of(type);
    for (int64_t i = first; i < last; i++) {
        const char *at = vectors + i * D * size;
        v4d sums[4] = {{0}};
        int64_t d = 0;
        for (; d + 2 * LANES <= D; d += 2 * LANES)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                const v4d x = FN(widen)(at + (d + 4 * c) * size, type);
                sums[c] += x * x;
            }
        for (; d < D; d += LANES) {
            char tail[32] = {0};
            memcpy(tail, at + d * size, (size_t)((D - d < LANES ? D - d : LANES) * size));
            for (int c = 0; c < 2; c++) {
                const v4d x = FN(widen)(tail + 4 * c * size, type);
                sums[c] += x * x;
            }
        }
        const v4d s = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const double squared = (s[0] + s[1]) + (s[2] + s[3]);
        if (!(squared >= range[0])) range[0] = squared == squared ? squared : -INFINITY;
        if (!(squared <= range[1])) range[1] = squared == squared ? squared : INFINITY;
    }
}

static void FN(norms)(const void *vectors, int type, int64_t first, int64_t last, int64_t D, double *range) {
    if (type == FLOAT32) FN(norms_type)(vectors, first, last, D, range, FLOAT32);
    else FN(norms_type)(vectors, first, last, D, range, FLOAT16);
}
