/* The hot loops of the search engine, called through ctypes. No Python in here.

   kernels_body.h holds the loops once, in the compilers' portable vector types. It is compiled twice: for any processor,
   and for AVX2 where that exists; which one runs is decided when the library is loaded. So no -march flag is needed and
   one build serves every machine of its kind. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES 8
#define PANEL 16         /* items side by side in the batch kernel: two vectors */
#define QUERY_ROWS 6     /* times two vectors, the accumulators that fit 16 registers */
#define DEPTH_BYTES 2048 /* of each vector taken at once, so that a panel stays in the first cache */
#define GROUP_ROWS 192   /* query vectors, and panels of items, taken at once: a factor of each stays in the second cache */
#define BLOCK_PANELS 16
#define SPREAD 16        /* numbers that stand for as many others: see product_body.h */
#define CACHE_BYTES (13 << 20) /* of packed items at once: they stay in the last cache, also where two threads share it */
#define TOGETHER 32      /* vectors of items whose exact products are under way at once */
#define STRETCH 256      /* dimensions of them taken at once: those of four query vectors stay in the first cache */
#define FIXED_ONE 32000  /* what 1 is in 16 bits, with room for norms that are not quite 1; scoring.py knows it too */

/* The last four are one-sided: for each vector of one set the (soft) maximum over the vectors of the item or of the query. */
enum { SMOOTH_CHAMFER, CHAMFER, MIL, SOFT_OF_ITEM, SOFT_OF_QUERY, MAX_OF_ITEM, MAX_OF_QUERY };
enum { FLOAT32, FLOAT16, INT8 };

typedef float v8 __attribute__((vector_size(32)));
typedef float v8_any __attribute__((vector_size(32), aligned(4), may_alias)); /* wherever it lies in memory */
typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef double v4d __attribute__((vector_size(32)));
typedef double v4d_any __attribute__((vector_size(32), aligned(8), may_alias));

typedef struct {
    int32_t similarity, type;  /* of the enums above; `type` is the items' */
    float alpha;
    float cap;                 /* no inner product exceeds it */
    int64_t K, L, D, padded;   /* set sizes, width of an item's vector, width of a query's: D up to a multiple of 8 */
    const void *items;         /* (N, K, D) */
    const float *side;         /* (N, 3, K): scale, error and residual of sketched vectors, or NULL */
    const float *query;        /* (queries, L, padded), L with rows of zeros up to a multiple of 4 */
    const float *norms;        /* (queries, L / 4, 2, 4): norms within the sketched dimensions and outside them */
} Task;

/* Large memory in large pages, where the system can be asked for them: a walk over it misses fewer addresses. */
static void *room(int64_t bytes) {
    void *found = NULL;
    if (posix_memalign(&found, 64, (size_t)bytes + 1)) return NULL;
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)1 << 21, start = ((uintptr_t)found + page - 1) & ~(page - 1);
    if (found && (uintptr_t)found + (uintptr_t)bytes > start + page) madvise((void *)start, (uintptr_t)found + (uintptr_t)bytes - start, MADV_HUGEPAGE);
#endif
    return found;
}

static int64_t size_of(int type) { return type == FLOAT32 ? 4 : type == FLOAT16 ? 2 : 1; }

#define FN(name) name##_any
#include "kernels_body.h"
#include "exact_body.h"
#include "product_body.h"
#include "batch_body.h"
#undef FN

#if defined(__x86_64__) && defined(__GNUC__)
#define WITH_AVX2 1
#include <cpuid.h>
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define AVX2 1
#define FN(name) name##_avx2
#include "kernels_body.h"
#include "exact_body.h"
#include "product_body.h"
#include "batch_body.h"
#undef FN
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
static int use_avx2 = -1;
#endif

#ifdef WITH_AVX2
/* Whether the operating system saves the 256-bit registers (XCR0 bits 1 and 2). A processor's flag says what it could
   do; without this a system or hypervisor that leaves AVX off would kill the process with SIGILL. */
static int os_enables_avx(void) {
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}
#endif

/* 1: the AVX2 loops run; 0: the portable ones. A test may ask for the portable ones. */
int polysem_choose(int portable) {
#ifdef WITH_AVX2
    __builtin_cpu_init();
    use_avx2 = !portable && os_enables_avx() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    return use_avx2;
#else
    (void)portable;
    return 0;
#endif
}

#ifdef WITH_AVX2
#define CALL(name, ...) (use_avx2 == 1 ? name##_avx2(__VA_ARGS__) : name##_any(__VA_ARGS__))
#else
#define CALL(name, ...) name##_any(__VA_ARGS__)
#endif

/* How many similarities there are: a library that was built before the last of them must not be asked for it. */
int polysem_similarities(void) { return MAX_OF_QUERY + 1; }

/* Scores (or upper bounds) of the items first..last, or of rows[first..last]. -1: out of memory. */
int polysem_scan(const Task *task, const int64_t *rows, int64_t first, int64_t last, float *scores) {
    return CALL(scan, task, rows, first, last, scores);
}

/* Scores of items first..last for queries from..to: scores[q * stride + item]. */
int polysem_batch(const Task *task, int64_t from, int64_t to, int64_t first, int64_t last, int64_t stride, float *scores) {
    return CALL(batch, task, from, to, first, last, stride, scores);
}

/* range: the least and the largest squared norm seen, before and after vectors first..last. */
void polysem_norms(const void *vectors, int32_t type, int64_t first, int64_t last, int64_t D, double *range) {
    CALL(norms, vectors, type, first, last, D, range);
}

static int64_t numbers_of_query(const Task *task) { return (task->L + 3) / 4 * 4 * task->padded; }

static void widen_query(const Task *task, int64_t number, double *query) {
    const int64_t size = numbers_of_query(task);
    for (int64_t i = 0; i < size; i++) query[i] = task->query[number * size + i];
}

/* Inner products in double, (rows, K, L), each summed in the one order that exact.py also follows, for queries first..last:
   query q has the rows from starts[q] to starts[q + 1]. */
int polysem_products(const Task *task, int64_t first, int64_t last, const int64_t *starts, const int64_t *rows, double *products) {
    double *query = malloc(sizeof *query * (size_t)numbers_of_query(task));
    if (!query) return -1;
    for (int64_t q = first; q < last; q++) {
        widen_query(task, q, query);
        CALL(products, task, query, rows + starts[q], starts[q + 1] - starts[q], products + starts[q] * task->K * task->L);
    }
    free(query);
    return 0;
}

#include "decide.h"
