/* Sum trees of equal size, one after another in `nodes`: tree r owns nodes[r * 2 * leaves ...], its root is node 1,
 * node k has the children 2k and 2k + 1, leaf i is node leaves + i. `leaves` is a power of two.
 *
 * Only comparisons, subtractions and sums of two children happen here, each rounded once in double precision, so that
 * the numpy version in sum_tree.py gives the same bits. Parents are recomputed from both children: no drift, and the
 * result does not depend on the order of the updates. A level is done for CHUNK items at a time, without branches, so
 * that their cache misses overlap.
 */
#include <stdint.h>

enum { CHUNK = 16 };

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* For each k: leaf[k] of tree row[k], whose interval of the running sum holds value[k], which becomes that leaf's value.
 * A subtree whose sum is 0 is never entered, whatever the rounding. */
void tree_find(const double *nodes, int64_t leaves, const int64_t *row, int64_t *leaf, double *value, int64_t n)
{
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t size = min(CHUNK, n - first), node[CHUNK];
        const double *tree[CHUNK];
        double rest[CHUNK];
        for (int64_t k = 0; k < size; k++) {
            tree[k] = nodes + row[first + k] * 2 * leaves;
            rest[k] = value[first + k];
            node[k] = 1;
        }
        for (int64_t level = 1; level < leaves; level *= 2)
            for (int64_t k = 0; k < size; k++) {
                const double *children = tree[k] + 2 * node[k];
                int64_t right = (rest[k] >= children[0]) & (children[1] > 0.0);
                rest[k] -= children[0] * (double)right; /* exact: times 0 or 1; a ternary becomes a branch */
                node[k] = 2 * node[k] + right;
            }
        for (int64_t k = 0; k < size; k++) {
            leaf[first + k] = node[k] - leaves;
            value[first + k] = tree[k][node[k]];
        }
    }
}

/* Sets leaf[k] of tree row[k] to value[k] for each k in turn. */
void tree_set(double *nodes, int64_t leaves, const int64_t *row, const int64_t *leaf, const double *value, int64_t n)
{
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t size = min(CHUNK, n - first), node[CHUNK];
        double *tree[CHUNK];
        for (int64_t k = 0; k < size; k++) {
            tree[k] = nodes + row[first + k] * 2 * leaves;
            node[k] = leaves + leaf[first + k];
            tree[k][node[k]] = value[first + k];
        }
        for (int64_t level = 1; level < leaves; level *= 2)
            for (int64_t k = 0; k < size; k++) {
                node[k] /= 2;
                tree[k][node[k]] = tree[k][2 * node[k]] + tree[k][2 * node[k] + 1];
            }
    }
}
