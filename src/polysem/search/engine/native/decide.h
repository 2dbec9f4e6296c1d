/* Which rows are the k best of a query: bounds narrow them down, exact products decide. Part of kernels.c. */

/* The first place from i on with a score above `least`; n: there is none. Most are not, so many are looked at together. */
static int64_t next_above(const float *scores, int64_t i, int64_t n, float least) {
    for (; i + 16 <= n; i += 16) {
        int any = 0;
        for (int j = 0; j < 16; j++) any |= scores[i + j] > least;
        if (any) break;
    }
    while (i < n && !(scores[i] > least)) i++;
    return i;
}

/* The places of the k largest of n scores, in no order. Returns how many there are. */
int64_t polysem_largest(const float *scores, int64_t n, int64_t k, int64_t *places) {
    int64_t held = 0;
    for (int64_t i = 0; i < n && k > 0; i++) {
        if (held == k && (i = next_above(scores, i, n, scores[places[0]])) == n) break;
        int64_t at;
        float score = scores[i];
        if (held < k) { /* the heap grows: sift the newcomer up */
            at = held++;
            while (at > 0 && scores[places[(at - 1) / 2]] > score) places[at] = places[(at - 1) / 2], at = (at - 1) / 2;
        } else { /* the least leaves: sift the newcomer down */
            at = 0;
            for (;;) {
                int64_t child = 2 * at + 1;
                if (child >= held) break;
                if (child + 1 < held && scores[places[child + 1]] < scores[places[child]]) child++;
                if (scores[places[child]] >= score) break;
                places[at] = places[child], at = child;
            }
        }
        places[at] = i;
    }
    return held;
}

/* What one thread needs for one query after the other. */
typedef struct {
    int64_t *places, *best; /* (n), (n) */
    float *scores;          /* (n) */
    double *query;          /* the query's vectors */
    float *work;            /* for `judge` */
} Desk;

static void clear(Desk *desk) { free(desk->places), free(desk->best), free(desk->scores), free(desk->query), free(desk->work); }

static int equip(Desk *desk, const Task *full, int64_t n) {
    const size_t items = (size_t)n + 1;
    *desk = (Desk){malloc(sizeof(int64_t) * items), malloc(sizeof(int64_t) * items), malloc(sizeof(float) * items),
                   malloc(sizeof(double) * (size_t)numbers_of_query(full)),
                   malloc(sizeof(float) * (size_t)(full->K * full->L * LANES))};
    if (desk->places && desk->best && desk->scores && desk->query && desk->work) return 0;
    clear(desk);
    return -1;
}

/* The k-th largest of n scores. */
static float bar_of(Desk *desk, const float *scores, int64_t n, int64_t k) {
    return polysem_largest(scores, n, k, desk->best) < k ? -INFINITY : scores[desk->best[0]];
}

/* Those of n items that may be among the k best, for one query: what `Contest` does. `levels` tasks: sketches, each for
   those that the one before leaves, then the vectors themselves. slacks: how far the given bounds, then those of each task,
   may be off. `promising`: how many to score in full before the bounds are of use; 0 where they are no mere bounds but
   scores. Leaves them in the desk's places and their scores, off by `slack` at most, in its scores; returns how many there
   are, -1 without memory. `scored`: how many were scored in full. */
static int64_t finalists(const Task *tasks, int64_t levels, float *bounds, int64_t n, const float *slacks, int64_t k,
                         int64_t promising, int64_t room, Desk *desk, int64_t *scored, float *slack) {
    int64_t *places = desk->places, first = 0, left, found = 0;
    float *scores = desk->scores, bar;
    const Task *full = tasks + levels - 1;
    int failed = 0;
    if (promising) {
        first = polysem_largest(bounds, n, promising, places);
        failed |= polysem_scan(full, places, 0, first, scores);
        bar = bar_of(desk, scores, first, k) - slacks[levels];
        for (int64_t i = 0; i < first; i++) bounds[places[i]] = NAN;
    } else {
        bar = bar_of(desk, bounds, n, k) - slacks[0];
    }
    left = first;
    const float below = nextafterf(bar - slacks[0], -INFINITY);
    for (int64_t i = 0; (i = next_above(bounds, i, n, below)) < n; i++) places[left++] = i;
    for (const Task *level = tasks; level < full && 2 * left <= n; level++) { /* of many left most would stay */
        int64_t kept = first;
        failed |= polysem_scan(level, places, first, left, scores);
        for (int64_t i = first; i < left; i++)
            if (scores[i] >= bar - slacks[level - tasks + 1]) places[kept++] = places[i];
        left = kept;
    }
    *scored = promising ? left : n;
    if (!promising && left <= room) { /* so few that the score that decides may choose between them */
        for (int64_t i = 0; i < left; i++) scores[i] = bounds[places[i]];
        *slack = slacks[0];
        return failed ? -1 : left;
    }
    failed |= polysem_scan(full, places, first, left, scores);
    *slack = slacks[levels];
    bar = bar_of(desk, scores, left, k) - 2 * *slack;
    for (int64_t i = 0; i < left; i++)
        if (scores[i] >= bar) places[found] = places[i], scores[found++] = scores[i];
    return failed ? -1 : found;
}

/* Of `count` finalists, in the desk's places with scores off by `slack` at most, those that may be among the k best by their
   exact products, whose scores in float are off by `rounding` at most. Writes their rows and products; returns how many. */
static int64_t narrow(const Task *full, Desk *desk, int64_t count, float slack, float rounding, int64_t k, int64_t *rows, double *products) {
    const int64_t pairs = full->K * full->L;
    float *scores = desk->scores;
    int64_t ahead = 0, left, found = 0;
    const float promising = bar_of(desk, scores, count, k);
    memcpy(rows, desk->places, sizeof *rows * (size_t)count);
    for (int64_t i = 0; i < count; i++) /* the k most promising come first: theirs is the bar for the others */
        if (scores[i] >= promising) {
            const int64_t row = rows[i];
            const float score = scores[i];
            rows[i] = rows[ahead], scores[i] = scores[ahead];
            rows[ahead] = row, scores[ahead++] = score;
        }
    CALL(products, full, desk->query, rows, ahead, products);
    if (count <= k) return count;
    CALL(judge, full, products, ahead, desk->work, scores);
    const float bar = bar_of(desk, scores, ahead, k) - rounding;
    left = ahead;
    for (int64_t i = ahead; i < count; i++)
        if (scores[i] >= bar - slack) rows[left++] = rows[i];
    CALL(products, full, desk->query, rows + ahead, left - ahead, products + ahead * pairs);
    CALL(judge, full, products + ahead * pairs, left - ahead, desk->work, scores + ahead);
    const float last = bar_of(desk, scores, left, k) - 2 * rounding;
    for (int64_t i = 0; i < left; i++)
        if (scores[i] >= last) {
            rows[found] = rows[i];
            if (found < i) memcpy(products + found * pairs, products + i * pairs, sizeof *products * (size_t)pairs);
            found++;
        }
    return found;
}

/* For queries first..last, whose bounds are (queries, n): the rows that may be among the k best, and their exact products,
   those of query q from starts[q - first] to starts[q - first + 1]; none where there are more than `room`. slacks: see
   `finalists`, then that of `narrow`. -1: out of memory. */
int polysem_decide(const Task *tasks, int64_t levels, int64_t first, int64_t last, float *bounds, int64_t n,
                   const float *slacks, int64_t k, int64_t promising, int64_t room, int64_t *rows, double *products,
                   int64_t *starts, int64_t *scored) {
    Desk desk;
    if (equip(&desk, tasks + levels - 1, n)) return -1;
    int64_t at = 0, failed = 0;
    starts[0] = 0;
    for (int64_t q = first; q < last && !failed; q++) {
        Task mine[8];
        for (int64_t level = 0; level < levels; level++) {
            mine[level] = tasks[level];
            mine[level].query += q * numbers_of_query(tasks + level);
            if (mine[level].norms) mine[level].norms += q * 2 * ((tasks[level].L + 3) / 4 * 4);
        }
        const Task *full = mine + levels - 1;
        float slack;
        const int64_t count = finalists(mine, levels, bounds + q * n, n, slacks, k, promising, room, &desk, scored + q, &slack);
        failed = count < 0;
        if (count > 0 && count <= room) {
            widen_query(full, 0, desk.query);
            at += narrow(full, &desk, count, slack, slacks[levels + 1], k, rows + at, products + at * full->K * full->L);
        }
        starts[q - first + 1] = at;
    }
    clear(&desk);
    return failed ? -1 : 0;
}

typedef struct {
    double score;
    int64_t row;
} Hit;

static int better(const void *one, const void *other) {
    const Hit *a = one, *b = other;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

/* The k best of each query's rows, best first, equal scores by row -> (queries, k) each. Queries without rows are passed over. */
int polysem_order(int64_t queries, const int64_t *starts, const int64_t *rows, const double *scores, int64_t k, int64_t *best_rows, double *best_scores) {
    int64_t most = 1;
    for (int64_t q = 0; q < queries; q++)
        if (starts[q + 1] - starts[q] > most) most = starts[q + 1] - starts[q];
    Hit *hits = malloc(sizeof *hits * (size_t)most);
    if (!hits) return -1;
    for (int64_t q = 0; q < queries; q++) {
        const int64_t count = starts[q + 1] - starts[q];
        for (int64_t i = 0; i < count; i++) hits[i] = (Hit){scores[starts[q] + i], rows[starts[q] + i]};
        qsort(hits, (size_t)count, sizeof *hits, better);
        for (int64_t i = 0; i < k && i < count; i++) best_rows[q * k + i] = hits[i].row, best_scores[q * k + i] = hits[i].score;
    }
    free(hits);
    return 0;
}
