/* One gradient step of R members of a stacked ReLU action-value network, with or without LayerNorm: normalise, forward,
 * TD target, backward, clip, Adam, target mix. One member after another in a fixed order and over the rows of its own
 * batch alone, so that the numbers of a member do not depend on who stands beside it; vectors are element-wise only.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define TILE 4
#elif defined(__AVX__)
#define LANES 8
#define TILE 2
#else
#define LANES 4
#define TILE 2
#endif
#define ROWS 6
#define PAD 16 /* floats: rows that the kernels read start and end on whole vectors */
#define MAX_LAYERS 16

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int64_t i64;

typedef struct {
    i64 members, batch, layers, row_length, norm; /* R, B, L, floats of a bank row, LayerNorm in hidden layers */
    const i64 *width, *offset, *rows;       /* L + 1 widths; where each tensor starts; R rows of the bank */
    const i64 *count;                       /* (R) rows of each batch; those after them are padding */
    float *weights, *target, *moment1, *moment2, *adam_step, *grad; /* bank; grad is one row */
    const float *obs, *next_obs, *mean, *inverse; /* (R, B, D) both; (P, D) both, or null */
    const i64 *action;
    const float *reward, *discount, *terminated, *scale; /* (R, B) */
    const uint8_t *next_mask;                            /* (R, B, A) or null */
    const double *lr, *tau; /* (R); tau below 0 leaves the target alone */
    i64 twice, huber;       /* double Q-learning; Huber loss */
    double max_norm, clip;  /* of the gradient, 0: no limit; of normalised observations */
    float *value, *td_error, *q_value; /* out: (R), (R, B), (R) */
    float *scratch;
} Task;

static inline vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
static inline i64 padded(i64 n) { return (n + PAD - 1) / PAD * PAD; }
static inline float *take(float **at, i64 n) { float *p = *at; *at += padded(n); return p; }

/* c[rows][vectors] = bias + sum over k of a(row, k) * b(k, :), all in registers. */
static inline __attribute__((always_inline)) void tile(int rows, int vectors, i64 K, const float *a, i64 am, i64 ak,
                                                       const float *b, i64 ldb, const float *bias, float *c, i64 ldc) {
    vec acc[ROWS][TILE];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) acc[r][v] = bias ? load(bias + v * LANES) : (vec){0};
    for (i64 k = 0; k < K; k++)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) acc[r][v] += a[r * am + k * ak] * load(b + k * ldb + v * LANES);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * LANES, acc[r][v]);
}

/* C (M, N) = bias (N) + A (M, K) B (K, N); A is read by two distances, N is a multiple of PAD. */
static void gemm(i64 M, i64 N, i64 K, const float *A, i64 am, i64 ak, const float *B, i64 ldb, const float *bias,
                 float *C, i64 ldc) {
    for (i64 j = 0; j < N;) {
        const int wide = N - j >= TILE * LANES;
        const float *first = bias ? bias + j : 0;
        i64 i = 0;
        for (; i + ROWS <= M; i += ROWS)
            if (wide) tile(ROWS, TILE, K, A + i * am, am, ak, B + j, ldb, first, C + i * ldc + j, ldc);
            else tile(ROWS, 1, K, A + i * am, am, ak, B + j, ldb, first, C + i * ldc + j, ldc);
        for (; i < M; i++)
            if (wide) tile(1, TILE, K, A + i * am, am, ak, B + j, ldb, first, C + i * ldc + j, ldc);
            else tile(1, 1, K, A + i * am, am, ak, B + j, ldb, first, C + i * ldc + j, ldc);
        j += wide ? TILE * LANES : LANES;
    }
}

/* Rows (n, width) of distance `from` to rows of distance `to`, the rest of each row zero. */
static void repack(i64 n, i64 width, const float *x, i64 from, float *out, i64 to) {
    for (i64 i = 0; i < n; i++) { /* rows are short: a call of memcpy costs more than the copy */
        for (i64 k = 0; k < width; k++) out[i * to + k] = x[i * from + k];
        for (i64 k = width; k < to; k++) out[i * to + k] = 0;
    }
}

/* Sum of a padded row, in a fixed order. */
static inline float total(const float *x, i64 wide) {
    vec lanes = {0};
    for (i64 k = 0; k < wide; k += LANES) lanes += load(x + k);
    float sum = 0;
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

/* LayerNorm of rows z (n, wide), zero beyond b: z <- hat * gain + shift; keeps hat (n, wide) and 1 / deviation (n). */
static void normalize(i64 n, i64 b, i64 wide, float *z, float *hat, float *inverse, const float *gain,
                      const float *shift) {
    for (i64 i = 0; i < n; i++, z += wide, hat += wide) {
        const float mean = total(z, wide) / b;
        for (i64 k = 0; k < wide; k++) hat[k] = k < b ? z[k] - mean : 0;
        vec square = {0};
        for (i64 k = 0; k < wide; k += LANES) square += load(hat + k) * load(hat + k);
        float variance = 0;
        for (int k = 0; k < LANES; k++) variance += square[k];
        inverse[i] = 1 / sqrtf(variance / b + 1e-5f);
        for (i64 k = 0; k < wide; k++) hat[k] *= inverse[i];
        for (i64 k = 0; k < b; k++) z[k] = hat[k] * gain[k] + shift[k];
    }
}

/* Gradient rows g (n, wide) after a LayerNorm to before it; adds up the gradients of gain and shift. */
static void unnormalize(i64 n, i64 b, i64 wide, float *g, const float *hat, const float *inverse, const float *gain,
                        float *d_gain, float *d_shift, float *free) {
    memset(d_gain, 0, b * sizeof *d_gain);
    memset(d_shift, 0, b * sizeof *d_shift);
    float *product = free;
    memset(product, 0, wide * sizeof *product);
    for (i64 i = 0; i < n; i++, g += wide, hat += wide) {
        for (i64 k = 0; k < b; k++) {
            d_gain[k] += g[k] * hat[k];
            d_shift[k] += g[k];
            g[k] *= gain[k];
            product[k] = g[k] * hat[k];
        }
        const float first = total(g, wide) / b, second = total(product, wide) / b;
        for (i64 k = 0; k < b; k++) g[k] = inverse[i] * (g[k] - first - hat[k] * second);
    }
}

/* Number of the first tensor of layer l: weight, bias, and with LayerNorm gain, shift. */
static inline const i64 *tensors(const Task *t, i64 l) { return t->offset + l * (t->norm ? 4 : 2); }

/* Layer l of x[0] (n, padded(width[0])) lands in x[l + 1]; with LayerNorm hat[l + 1] and inverse[l + 1] are kept. */
static void forward(const Task *t, const float *w, i64 n, float *const *x, float *const *hat, float *const *inverse,
                    float *free) {
    for (i64 l = 0; l < t->layers; l++) {
        const i64 a = t->width[l], b = t->width[l + 1], wide = padded(b);
        const i64 *at = tensors(t, l);
        const float *weight = w + at[0];
        float *turned = free, *bias = free + a * wide;
        for (i64 i = 0; i < a; i++) {
            for (i64 o = 0; o < b; o++) turned[i * wide + o] = weight[o * a + i];
            for (i64 o = b; o < wide; o++) turned[i * wide + o] = 0;
        }
        repack(1, b, w + at[1], b, bias, wide);
        float *out = x[l + 1];
        gemm(n, wide, a, x[l], padded(a), 1, turned, wide, bias, out, wide);
        if (l == t->layers - 1) break;
        if (t->norm) normalize(n, b, wide, out, hat[l + 1], inverse[l + 1], w + at[2], w + at[3]);
        for (i64 i = 0; i < n * wide; i++) out[i] = out[i] < 0 ? 0 : out[i]; /* NaN stays */
    }
}

/* t->grad from `above` (n, padded(A)), the gradient of the outputs; both buffers are used up. */
static void backward(const Task *t, const float *w, i64 n, float *const *x, float *const *hat, float *const *inverse,
                     float *above, float *below, float *free) {
    for (i64 l = t->layers - 1; l >= 0; l--) {
        const i64 a = t->width[l], b = t->width[l + 1], in = padded(a), out = padded(b);
        float *dw = t->grad + tensors(t, l)[0], *db = t->grad + tensors(t, l)[1];
        float *to = a == in ? dw : free;
        gemm(b, in, n, above, 1, out, x[l], in, 0, to, in);
        if (to != dw) for (i64 o = 0; o < b; o++) memcpy(dw + o * a, to + o * in, a * sizeof *dw);
        memset(db, 0, b * sizeof *db);
        for (i64 i = 0; i < n; i++)
            for (i64 o = 0; o < b; o++) db[o] += above[i * out + o];
        if (!l) break;
        repack(b, a, w + tensors(t, l)[0], a, free, in);
        gemm(n, in, b, above, out, 1, free, in, 0, below, in);
        for (i64 i = 0; i < n * in; i++) below[i] = x[l][i] > 0 ? below[i] : 0;
        if (t->norm) {
            const i64 *at = tensors(t, l - 1);
            unnormalize(n, a, in, below, hat[l], inverse[l], w + at[2], t->grad + at[2], t->grad + at[3], free);
        }
        float *swap = above;
        above = below;
        below = swap;
    }
}

static void encode(const Task *t, i64 member, i64 n, i64 row, const float *x, float *out) {
    const i64 width = t->width[0], wide = padded(width);
    repack(n, width, x + member * t->batch * width, width, out, wide);
    if (!t->mean) return;
    const float *mean = t->mean + row * width, *inverse = t->inverse + row * width, clip = (float)t->clip;
    for (i64 i = 0; i < n; i++)
        for (i64 d = 0; d < width; d++) {
            const float z = (out[i * wide + d] - mean[d]) * inverse[d];
            out[i * wide + d] = z < -clip ? -clip : z > clip ? clip : z;
        }
}

/* The largest legal value's action; a row of zeros forbids nothing. */
static i64 best(const float *q, const uint8_t *mask, i64 A) {
    int any = 0;
    for (i64 a = 0; mask && a < A; a++) any |= mask[a] != 0;
    i64 first = -1;
    for (i64 a = 0; a < A; a++)
        if ((!any || mask[a]) && (first < 0 || q[a] > q[first] || q[a] != q[a])) first = a;
    return first;
}

/* Loss of member r; writes the gradient of its outputs to `above` (n, padded(A)). */
static void head(const Task *t, i64 r, i64 n, const float *q, const float *next_q, const float *chooser,
                 float *above) {
    const i64 A = t->width[t->layers], wide = padded(A), B = t->batch;
    double total = 0, mean = 0;
    memset(above, 0, n * wide * sizeof *above);
    memset(t->td_error + r * B, 0, B * sizeof *t->td_error);
    for (i64 i = 0; i < n; i++) {
        const i64 at = r * B + i, action = t->action[at];
        const uint8_t *mask = t->next_mask ? t->next_mask + at * A : 0;
        const float bootstrap = next_q[i * wide + best(chooser + i * wide, mask, A)];
        const float y = t->reward[at] + t->discount[at] * (1 - t->terminated[at]) * bootstrap;
        const float error = q[i * wide + action] - y, size = fabsf(error);
        const int outside = t->huber && size > 1;
        t->td_error[at] = error;
        mean += q[i * wide + action];
        total += t->scale[at] * (outside ? 2 * size - 1 : error * error);
        above[i * wide + action] = t->scale[at] * 2 * (outside ? copysignf(1, error) : error);
    }
    t->value[r] = (float)total;
    t->q_value[r] = (float)(mean / n);
}

static void clip(const Task *t) {
    double square = 0;
    for (i64 i = 0; i < t->row_length; i++) square += (double)t->grad[i] * t->grad[i];
    const double factor = t->max_norm / (sqrt(square) + 1e-6);
    if (factor < 1) for (i64 i = 0; i < t->row_length; i++) t->grad[i] *= (float)factor;
}

/* Kingma and Ba 2015, then target <- target + tau * (weights - target). */
static void adam(const Task *t, i64 row, double lr, double tau) {
    const double step = t->adam_step[row] += 1;
    const float b1 = 0.9f, b2 = 0.999f, rate = (float)(lr / (1 - pow(0.9, step)));
    const float root = (float)(1 / sqrt(1 - pow(0.999, step))), mix = (float)(tau > 0 ? tau : 0);
    float *w = t->weights + row * t->row_length, *s = t->target + row * t->row_length;
    float *m = t->moment1 + row * t->row_length, *v = t->moment2 + row * t->row_length;
    const float *g = t->grad;
    for (i64 i = 0; i < t->row_length; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        w[i] -= rate * m[i] / (sqrtf(v[i]) * root + 1e-8f);
        s[i] += mix * (w[i] - s[i]);
    }
}

/* Floats that `scratch` must hold. */
i64 td_scratch(const Task *t) {
    i64 widest = 0, rows = 0;
    for (i64 l = 0; l <= t->layers; l++) {
        const i64 wide = padded(t->width[l]);
        widest = wide > widest ? wide : widest;
        rows += wide;
    }
    return (6 * rows + 2 * widest + 2 * PAD * (t->layers + 1)) * t->batch + (widest + 1) * widest + PAD * 256;
}

/* grad must be zero between the tensors; MAX_LAYERS bounds L. */
void td_update(const Task *t) {
    const i64 L = t->layers, B = t->batch;
    float *x[MAX_LAYERS + 1], *next[MAX_LAYERS + 1], *other[MAX_LAYERS + 1], *free = t->scratch;
    float *hat[MAX_LAYERS + 1], *inverse[MAX_LAYERS + 1], *lost[MAX_LAYERS + 1], *gone[MAX_LAYERS + 1];
    i64 widest = 0;
    for (i64 l = 0; l <= L; l++) {
        const i64 wide = padded(t->width[l]);
        widest = wide > widest ? wide : widest;
        x[l] = take(&free, B * wide);
        next[l] = take(&free, B * wide);
        other[l] = l ? take(&free, B * wide) : next[0];
        hat[l] = take(&free, B * wide); /* of the pass that is differentiated */
        inverse[l] = take(&free, B);
        lost[l] = take(&free, B * wide);
        gone[l] = take(&free, B);
    }
    float *above = take(&free, B * widest), *below = take(&free, B * widest);
    for (i64 r = 0; r < t->members; r++) {
        const i64 row = t->rows[r], n = t->count[r];
        const float *w = t->weights + row * t->row_length;
        encode(t, r, n, row, t->obs, x[0]);
        encode(t, r, n, row, t->next_obs, next[0]);
        forward(t, w, n, x, hat, inverse, free);
        forward(t, t->target + row * t->row_length, n, next, lost, gone, free);
        if (t->twice) forward(t, w, n, other, lost, gone, free);
        head(t, r, n, x[L], next[L], t->twice ? other[L] : next[L], above);
        backward(t, w, n, x, hat, inverse, above, below, free);
        if (t->max_norm > 0) clip(t);
        adam(t, row, t->lr[r], t->tau[r]);
    }
}
