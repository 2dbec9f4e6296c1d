/* Compiled once for every processor named in kernels.c; FN() gives each its own names. */

/* Eight numbers of an item, from the type they are stored in. */
INLINE v8 FN(load)(const char *from, int type) {
    if (type == FLOAT32) return *(const v8_any *)from;
#ifdef AVX2
    if (type == FLOAT16) return (v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
    return (v8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    v8 out;
    for (int i = 0; i < LANES; i++) {
        if (type == INT8) {
            out[i] = (float)((const int8_t *)from)[i];
        } else { /* a half float moved into a float's place is short of the exponents' difference, 2^112 */
            uint16_t half;
            memcpy(&half, from + 2 * i, 2);
            uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
            float value;
            memcpy(&value, &bits, 4);
            value *= 0x1p112f;
            out[i] = half & 0x8000 ? -value : value;
        }
    }
    return out;
#endif
}

INLINE v8 FN(load_tail)(const char *from, int64_t count, int type) {
    char padded[32] = {0};
    memcpy(padded, from, (size_t)(count * size_of(type)));
    return FN(load)(padded, type);
}

INLINE v8 FN(max)(v8 a, v8 b) {
#ifdef AVX2
    return (v8)_mm256_max_ps((__m256)a, (__m256)b);
#else
    v8 out;
    for (int i = 0; i < LANES; i++) out[i] = a[i] > b[i] ? a[i] : b[i];
    return out;
#endif
}

INLINE v4 FN(min)(v4 a, v4 b) {
#ifdef AVX2
    return (v4)_mm_min_ps((__m128)a, (__m128)b);
#else
    v4 out;
    for (int i = 0; i < 4; i++) out[i] = a[i] < b[i] ? a[i] : b[i];
    return out;
#endif
}

/* e^x for x <= 0; relative error below 4e-7. What is below e^-87 counts as that. */
INLINE v8 FN(exp)(v8 x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, kept in the low bits */
    x = FN(max)(x, x * 0 - 87.0f);
    v8 shifted = x * 1.44269504f + magic, whole = shifted - magic;
    v8 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    v8i scale = ((v8i)shifted << 23) + 0x3f800000;
    return p * (v8)scale;
}

/* ln x of normal positive x; error below 4e-7 of the larger of 1 and the result. */
INLINE v8 FN(log)(v8 x) {
    v8i bits = (v8i)x, exponent = (bits - 0x3f3504f3) >> 23;
    v8 f = (v8)(bits - (exponent << 23)) - 1.0f, e = __builtin_convertvector(exponent, v8), z = f * f;
    v8 p = f * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return p * f * z - e * 2.12194440e-4f - z * 0.5f + f + e * 0.693359375f;
}

/* Inner products c[l * of_l + k * of_k + lane] of eight items -> their eight scores. */
INLINE v8 FN(reduce)(const float *c, int64_t of_l, int64_t of_k, int64_t K, int64_t L, int similarity, float alpha) {
#define C(l, k) (*(const v8_any *)(c + (l) * of_l + (k) * of_k))
    v8 rows = {0}, columns = {0}, top = C(0, 0);
    if (similarity >= SOFT_OF_ITEM) {
        const int turned = similarity == SOFT_OF_QUERY || similarity == MAX_OF_QUERY;
        const int64_t outer = turned ? K : L, inner = turned ? L : K;
        v8 total = {0};
        for (int64_t i = 0; i < outer; i++) {
            v8 most = turned ? C(0, i) : C(i, 0), sum = {0}, weighted = {0};
            for (int64_t j = 1; j < inner; j++) most = FN(max)(most, turned ? C(j, i) : C(i, j));
            if (similarity == MAX_OF_ITEM || similarity == MAX_OF_QUERY) {
                total += most;
                continue;
            }
            for (int64_t j = 0; j < inner; j++) {
                const v8 one = turned ? C(j, i) : C(i, j), e = FN(exp)((one - most) * alpha);
                sum += e, weighted += e * one;
            }
            total += weighted / sum;
        }
        return total / (float)outer;
    }
    if (similarity == MIL || similarity == SMOOTH_CHAMFER) {
        for (int64_t l = 0; l < L; l++)
            for (int64_t k = 0; k < K; k++) top = FN(max)(top, C(l, k));
        if (similarity == MIL) return top;
        if (alpha <= 40 && K <= 16) { /* one exponential serves both directions: e^(-2 alpha) is still a float */
            v8 sums[16] = {{0}};
            for (int64_t l = 0; l < L; l++) {
                v8 sum = {0};
                for (int64_t k = 0; k < K; k++) {
                    v8 e = FN(exp)((C(l, k) - top) * alpha);
                    sum += e, sums[k] += e;
                }
                rows += FN(log)(sum);
            }
            for (int64_t k = 0; k < K; k++) columns += FN(log)(sums[k]);
            return top + (rows / (float)L + columns / (float)K) / (2 * alpha);
        }
    }
    for (int direction = 0; direction < 2; direction++) {
        int64_t outer = direction ? K : L, inner = direction ? L : K;
        v8 total = {0};
        for (int64_t i = 0; i < outer; i++) {
            v8 most = direction ? C(0, i) : C(i, 0), sum = {0};
            for (int64_t j = 1; j < inner; j++) most = FN(max)(most, direction ? C(j, i) : C(i, j));
            total += most;
            if (similarity == CHAMFER) continue;
            for (int64_t j = 0; j < inner; j++) sum += FN(exp)(((direction ? C(j, i) : C(i, j)) - most) * alpha);
            total += FN(log)(sum) / alpha;
        }
        if (direction) columns = total / (float)K;
        else rows = total / (float)L;
    }
    return (rows + columns) / 2;
#undef C
}

/* The usual sizes with their loops unrolled. */
INLINE v8 FN(score)(const float *c, int64_t of_l, int64_t of_k, const Task *t) {
    if (t->K == 4 && t->L == 4 && t->similarity == SMOOTH_CHAMFER && t->alpha <= 40)
        return FN(reduce)(c, of_l, of_k, 4, 4, SMOOTH_CHAMFER, t->alpha);
    return FN(reduce)(c, of_l, of_k, t->K, t->L, t->similarity, t->alpha);
}

/* ------------------------------------------------------------------ one query */

/* R vectors of an item with four of the query: the sums of their products. */
INLINE void FN(float_sums)(const Task *t, const char *item, int64_t l, int type, int R, v4 *sums) {
    const int64_t D = t->D, padded = t->padded, size = size_of(type);
    const float *query = t->query + l * padded;
    v8 acc[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) acc[r][c] = (v8){0};
    const int64_t whole = D / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES)
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            v8 y = FN(load)(item + (r * D + d) * size, type);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) acc[r][c] += y * *(const v8_any *)(query + c * padded + d);
        }
    if (whole < D)
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            v8 y = FN(load_tail)(item + (r * D + whole) * size, D - whole, type);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) acc[r][c] += y * *(const v8_any *)(query + c * padded + whole);
        }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#ifdef AVX2
        __m256 pairs = _mm256_hadd_ps((__m256)acc[r][0], (__m256)acc[r][1]);
        __m256 others = _mm256_hadd_ps((__m256)acc[r][2], (__m256)acc[r][3]);
        __m256 four = _mm256_hadd_ps(pairs, others);
        sums[r] = (v4)_mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
#else
        for (int c = 0; c < 4; c++) {
            v8 a = acc[r][c];
            sums[r][c] = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
        }
#endif
    }
}

#ifdef AVX2
#define WHOLE 16 /* numbers of 16 bits in a vector */
/* The same for sketches, in whole numbers: see batch_body.h. query: four vectors, each padded to a multiple of WHOLE. */
INLINE void FN(whole_sums)(const char *item, const int16_t *query, int64_t D, int R, v4 *sums) {
    const int64_t padded = (D + WHOLE - 1) / WHOLE * WHOLE;
    __m256i acc[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) acc[r][c] = _mm256_setzero_si256();
#define ADD(codes)                                                                                                    \
    do {                                                                                                              \
        const __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes)));                            \
        for (int c = 0; c < 4; c++) {                                                                                 \
            const __m256i x = _mm256_loadu_si256((const __m256i *)(query + c * padded + d));                          \
            acc[r][c] = _mm256_add_epi32(acc[r][c], _mm256_madd_epi16(y, x));                                         \
        }                                                                                                             \
    } while (0)
    int64_t d = 0;
    for (; d + WHOLE <= D; d += WHOLE)
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) ADD(item + r * D + d);
    if (d < D)
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            char tail[WHOLE] = {0};
            memcpy(tail, item + r * D + d, (size_t)(D - d));
            ADD(tail);
        }
#undef ADD
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        __m256i pairs = _mm256_hadd_epi32(acc[r][0], acc[r][1]), others = _mm256_hadd_epi32(acc[r][2], acc[r][3]);
        __m256i four = _mm256_hadd_epi32(pairs, others);
        __m128i whole = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
        sums[r] = (v4)_mm_cvtepi32_ps(whole) * (1.0f / FIXED_ONE);
    }
}

/* The queries' vectors in 16 bits, (fours, padded to a multiple of WHOLE). */
static int16_t *FN(fixed_query)(const Task *t) {
    const int64_t fours = (t->L + 3) / 4 * 4, padded = (t->D + WHOLE - 1) / WHOLE * WHOLE;
    int16_t *fixed = calloc((size_t)(fours * padded), sizeof *fixed);
    for (int64_t l = 0; l < fours && fixed; l++)
        for (int64_t d = 0; d < t->D; d++) fixed[l * padded + d] = (int16_t)lrintf(t->query[l * t->padded + d] * FIXED_ONE);
    return fixed;
}
#endif

/* R vectors of an item with four of the query from l on; the products, or upper bounds made of them, go to
   out[r * of_row]. fixed: `fixed_query` where the items are sketches. */
INLINE void FN(tile)(const Task *t, const int16_t *fixed, const char *item, const float *side, int64_t l, int type, int R, float *out, int64_t of_row) {
    v4 sums[2] = {{0}};
#ifdef AVX2
    if (type == INT8) FN(whole_sums)(item, fixed + l * ((t->D + WHOLE - 1) / WHOLE * WHOLE), t->D, R, sums);
    else FN(float_sums)(t, item, l, type, R, sums);
#else
    (void)fixed;
    FN(float_sums)(t, item, l, type, R, sums);
#endif
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        if (side) {
            const v4_any *norms = (const v4_any *)(t->norms + 2 * l);
            v4 bound = sums[r] * side[r] + norms[0] * side[t->K + r] + norms[1] * side[2 * t->K + r];
            sums[r] = FN(min)(bound, bound * 0 + t->cap);
        }
        *(v4_any *)(out + r * of_row) = sums[r];
    }
}

/* Eight rows of four, `stride` apart -> four rows of eight. */
INLINE void FN(turn)(const float *from, int64_t stride, float *to) {
#ifdef AVX2
    __m256 a[4];
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * stride)), _mm_loadu_ps(from + (i + 4) * stride), 1);
    __m256 low = _mm256_unpacklo_ps(a[0], a[1]), high = _mm256_unpackhi_ps(a[0], a[1]);
    __m256 low2 = _mm256_unpacklo_ps(a[2], a[3]), high2 = _mm256_unpackhi_ps(a[2], a[3]);
    _mm256_storeu_ps(to, _mm256_shuffle_ps(low, low2, 0x44));
    _mm256_storeu_ps(to + 8, _mm256_shuffle_ps(low, low2, 0xee));
    _mm256_storeu_ps(to + 16, _mm256_shuffle_ps(high, high2, 0x44));
    _mm256_storeu_ps(to + 24, _mm256_shuffle_ps(high, high2, 0xee));
#else
    for (int lane = 0; lane < LANES; lane++)
        for (int c = 0; c < 4; c++) to[c * LANES + lane] = from[lane * stride + c];
#endif
}

/* `work`: the products of eight items, item by item (8, K, fours), then the same lane by lane (K, fours, 8). */
INLINE void FN(scan_type)(const Task *t, const int16_t *fixed, const int64_t *rows, int64_t first, int64_t last, float *scores, float *work, int type) {
    const int64_t K = t->K, size = size_of(type), bytes = K * t->D * size, fours = (t->L + 3) / 4 * 4;
    const int64_t ahead = 1 + 4096 / bytes; /* memory is asked for that many items before it is needed */
    const char *items = t->items;
    float *turned = work + LANES * K * fours;
    for (int64_t i = first; i < last; i += LANES) {
        int64_t count = last - i < LANES ? last - i : LANES;
        for (int64_t lane = 0; lane < count; lane++) {
            int64_t at = i + lane, row = rows ? rows[at] : at;
            if (at + ahead < last) {
                const char *later = items + (rows ? rows[at + ahead] : at + ahead) * bytes;
                for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(later + b);
            }
            const float *side = t->side ? t->side + row * 3 * K : 0;
            for (int64_t k = 0; k < K; k += 2)
                for (int64_t l = 0; l < fours; l += 4) {
                    const char *item = items + row * bytes + k * t->D * size;
                    float *out = work + (lane * K + k) * fours + l;
                    if (K - k > 1) FN(tile)(t, fixed, item, side ? side + k : 0, l, type, 2, out, fours);
                    else FN(tile)(t, fixed, item, side ? side + k : 0, l, type, 1, out, fours);
                }
        }
        for (int64_t j = 0; j < K * fours; j += 4) FN(turn)(work + j, K * fours, turned + j * LANES);
        v8 score = FN(score)(turned, LANES, fours * LANES, t);
        if (count == LANES) *(v8_any *)(scores + i) = score;
        else
            for (int64_t lane = 0; lane < count; lane++) scores[i + lane] = score[lane];
    }
}

static int FN(scan)(const Task *t, const int64_t *rows, int64_t first, int64_t last, float *scores) {
    float *work = calloc((size_t)(2 * LANES * t->K * ((t->L + 3) / 4 * 4)), sizeof(float));
    int16_t *fixed = 0;
    int failed = !work;
#ifdef AVX2
    if (t->type == INT8) fixed = FN(fixed_query)(t), failed |= !fixed;
#endif
    if (failed) last = first;
    if (t->type == FLOAT32) FN(scan_type)(t, fixed, rows, first, last, scores, work, FLOAT32);
    else if (t->type == FLOAT16) FN(scan_type)(t, fixed, rows, first, last, scores, work, FLOAT16);
    else FN(scan_type)(t, fixed, rows, first, last, scores, work, INT8);
    free(work), free(fixed);
    return failed ? -1 : 0;
}
