// The operations over whole arrays: they cut the work into pieces and hand it to the pool. Arguments are valid here;
// bindings.cpp checks them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace pageinn {

// Room for `size` elements in a vector that never shrinks, so that a step allocates nothing.
template <class T>
T* grown(std::vector<T>& v, int64_t size) {
    if (static_cast<int64_t>(v.size()) < size) v.resize(size);
    return v.data();
}

struct FreeDeleter {
    void operator()(void* p) const { std::free(p); }
};
template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

// A packed weight: either bytes and scales, or values.
struct PackedLinear {
    int64_t outputs = 0;
    int64_t inputs = 0;
    bool int8 = false;
    AlignedArray<uint8_t> bytes;
    AlignedArray<float> floats;  // scales of bytes, or values

    int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
    int64_t groups() const { return (inputs + kGroup - 1) / kGroup; }
    int64_t num_bytes() const { return int8 ? panels() * groups() * kGroup * kPanel : 0; }
    int64_t num_floats() const { return panels() * kPanel * (int8 ? groups() : inputs); }
    int64_t nbytes() const { return num_bytes() + num_floats() * static_cast<int64_t>(sizeof(float)); }
};

struct Engine {
    Engine(const Kernels& k, int threads, bool share) : kernels(k), share_prefixes(share), pool(threads) {}
    const Kernels& kernels;
    const bool share_prefixes;  // whether attention reads once what several sequences' tables begin with
    Pool pool;
    std::atomic<int64_t> saturated{0};  // elements that a store could not hold, since the beginning
};

// A [rows, columns] view whose rows are contiguous.
template <class T>
struct Matrix {
    T* values;
    int64_t rows;
    int64_t columns;
    int64_t stride;
    T* row(int64_t i) const { return values + i * stride; }
};

struct Attention {
    Matrix<const float> q;  // [tokens, heads * size]
    int64_t heads;
    Store store;
    const int32_t* tables;
    int64_t table_width;
    const int32_t* query_starts;
    const int32_t* context_lens;
    int64_t sequences;
    float scale;
    float* out;
};

struct Sampling {
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const uint64_t* seed;
    const uint64_t* choice;
    const uint64_t* position;
};

struct LogProbsOut {
    float* chosen;
    int32_t* top_ids;
    float* top;
    int64_t k;
};

PackedLinear pack(Engine&, const Matrix<const float>& weight, bool int8);
// Both copy nbytes() bytes: those of the integers, then those of the floats.
void save(Engine&, const PackedLinear&, uint8_t* out);
void restore(Engine&, const uint8_t* from, PackedLinear& to);
void linear(Engine&, const Matrix<const float>& x, const PackedLinear&, const Matrix<float>& out, bool add);
void rms_norm(Engine&, const Matrix<const float>& x, const float* weight, float eps, const Matrix<float>& out);
void rotary_write(Engine&, const Matrix<float>& qkv, const int32_t* positions, const float* cos, const float* sin,
                  int64_t half, int64_t heads, const int64_t* slots, const Store&);
void attention(Engine&, const Attention&);
void silu_mul(Engine&, const Matrix<const float>& gate_up, const Matrix<float>& out);
void copy_blocks(const Store&, const int32_t* pairs, int64_t count);

// Both return the first row with NaN or without a finite largest logit, or -1 when all is well.
int64_t sample(Engine&, const Matrix<const float>& logits, const Sampling&, int32_t* tokens);
int64_t log_probs(Engine&, const Matrix<const float>& logits, const int32_t* tokens, const LogProbsOut&);

}  // namespace pageinn
