// Sampling and log-probabilities: float64, a row at a time, in an order that depends on the row alone.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops.h"

namespace pageinn {
namespace {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the first two words for
// key = seed and counter = (position, choice, 0, 0), as a 53-bit number in [0, 1).
double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
    uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(choice), 0, 0};
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xD2511F53} * c[0], second = uint64_t{0xCD9E8D57} * c[2];
        const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(second),
                                  static_cast<uint32_t>(first >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(first)};
        std::memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return (static_cast<double>(c[0] >> 5) * 67108864.0 + (c[1] >> 6)) / 9007199254740992.0;
}

// Sorts ascending as: larger logit first, then lower id.
uint64_t rank_key(float logit, int64_t id) {
    const float plain = logit + 0.0f;  // -0 becomes 0, so that the two tie
    uint32_t bits;
    std::memcpy(&bits, &plain, sizeof bits);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(id);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

// Cuts `keys` to the smallest set of most likely tokens whose share of all reaches `top_p`. Sorts no more than needed.
void keep_top_p(std::vector<uint64_t>& keys, const double* probabilities, double top_p) {
    double total = 0;
    for (const uint64_t key : keys) total += probabilities[id_of(key)];
    double reached = 0;
    size_t sorted = 0;
    for (size_t size = 256; sorted < keys.size(); size *= 8) {
        const size_t end = std::min(size, keys.size());
        std::nth_element(keys.begin() + sorted, keys.begin() + (end - 1), keys.end());
        std::sort(keys.begin() + sorted, keys.begin() + end);
        for (; sorted < end; ++sorted) {
            reached += probabilities[id_of(keys[sorted])];
            if (reached >= top_p * total) {
                keys.resize(sorted + 1);
                return;
            }
        }
    }
}

// The first of `count` tokens at which the cumulative probability exceeds draw * total.
template <class Id>
int32_t invert(int64_t count, const double* probabilities, double draw, Id id) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += probabilities[id(i)];
    const double target = draw * total;
    double reached = 0;
    int32_t last = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double each = probabilities[id(i)];
        if (each == 0) continue;
        reached += each;
        last = id(i);
        if (reached > target) break;
    }
    return last;  // rounding may carry the draw to the very top: the last token that can be drawn is then meant
}

int32_t draw_row(const Kernels& kernels, const float* logits, int64_t size, float largest, const Sampling& s,
                 int64_t row) {
    thread_local std::vector<double> probabilities;
    thread_local std::vector<uint64_t> keys;
    probabilities.resize(size);
    double* p = probabilities.data();
    kernels.exponentials(logits, size, s.temperature[row], largest, p);
    const double least = s.min_p[row];
    if (least > 0) {
        for (int64_t i = 0; i < size; ++i) p[i] = p[i] < least ? 0.0 : p[i];
    }
    const double draw = uniform(s.seed[row], s.choice[row], s.position[row]);
    const int64_t top_k = s.top_k[row];
    const bool cut_k = top_k > 0 && top_k < size, cut_p = s.top_p[row] < 1;
    if (!cut_k && !cut_p) return invert(size, p, draw, [](int64_t i) { return static_cast<int32_t>(i); });
    keys.clear();
    for (int64_t i = 0; i < size; ++i)
        if (p[i] > 0) keys.push_back(rank_key(logits[i], i));
    if (cut_k && top_k < static_cast<int64_t>(keys.size())) {
        std::nth_element(keys.begin(), keys.begin() + (top_k - 1), keys.end());
        keys.resize(top_k);
    }
    if (cut_p) keep_top_p(keys, p, s.top_p[row]);
    std::sort(keys.begin(), keys.end(), [](uint64_t a, uint64_t b) { return id_of(a) < id_of(b); });
    return invert(static_cast<int64_t>(keys.size()), p, draw, [&](int64_t i) { return id_of(keys[i]); });
}

void log_probs_row(const Kernels& kernels, const float* logits, int64_t size, float largest, int32_t token,
                   const LogProbsOut& out, int64_t row) {
    thread_local std::vector<double> exponentials;
    thread_local std::vector<uint64_t> keys;
    exponentials.resize(size);
    kernels.exponentials(logits, size, 1.0, largest, exponentials.data());
    double total = 0;
    for (int64_t i = 0; i < size; ++i) total += exponentials[i];
    const double shift = largest + std::log(total);
    const auto log_prob = [&](int64_t id) { return static_cast<float>(logits[id] - shift); };
    out.chosen[row] = log_prob(token);
    if (out.k == 0) return;
    keys.resize(size);
    for (int64_t i = 0; i < size; ++i) keys[i] = rank_key(logits[i], i);
    std::partial_sort(keys.begin(), keys.begin() + out.k, keys.end());
    for (int64_t i = 0; i < out.k; ++i) {
        out.top_ids[row * out.k + i] = id_of(keys[i]);
        out.top[row * out.k + i] = log_prob(id_of(keys[i]));
    }
}

// Calls body(row, peak) for every row, in parallel; returns the first row that has no finite largest logit, or -1.
template <class Body>
int64_t for_finite_rows(Engine& e, const Matrix<const float>& logits, Body body) {
    std::atomic<int64_t> bad{logits.rows};
    e.pool.parallel_for(logits.rows, [&](int64_t row) {
        const Peak peak = e.kernels.peak(logits.row(row), logits.columns);
        if (!peak.has_nan && std::isfinite(peak.value)) return body(row, peak);
        int64_t seen = bad.load();
        while (row < seen && !bad.compare_exchange_weak(seen, row)) {
        }
    });
    return bad == logits.rows ? -1 : bad.load();
}

}  // namespace

int64_t sample(Engine& e, const Matrix<const float>& logits, const Sampling& s, int32_t* tokens) {
    return for_finite_rows(e, logits, [&](int64_t row, const Peak& peak) {
        tokens[row] = s.temperature[row] == 0
                          ? peak.index
                          : draw_row(e.kernels, logits.row(row), logits.columns, peak.value, s, row);
    });
}

int64_t log_probs(Engine& e, const Matrix<const float>& logits, const int32_t* tokens, const LogProbsOut& out) {
    return for_finite_rows(e, logits, [&](int64_t row, const Peak& peak) {
        log_probs_row(e.kernels, logits.row(row), logits.columns, peak.value, tokens[row], out, row);
    });
}

}  // namespace pageinn
