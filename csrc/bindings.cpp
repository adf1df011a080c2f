// Python's way in: checks every argument, releases the lock for work that is worth it, and calls the operations.
//
// Arrays come through the buffer protocol by hand rather than through nanobind's ndarray: a decode step makes some
// 240 calls, and this costs a tenth as much per argument and lets an error name the argument and both shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "isa.h"
#include "ops.h"

namespace nb = nanobind;

namespace pageinn {
namespace {

struct DType {
    const char* name;
    const char* codes;  // buffer format characters
    int bytes;
};
constexpr DType kFloat32{"float32", "f", 4}, kFloat16{"float16", "e", 2}, kUint16{"uint16", "H", 2},
    kUint8{"uint8", "B", 1},
    kInt8{"int8", "b", 1}, kInt32{"int32", "il", 4}, kInt64{"int64", "lq", 8}, kUint64{"uint64", "LQ", 8};

[[noreturn]] void fail(const std::string& text) { throw nb::value_error(text.c_str()); }

class Array {
public:
    enum Access { kRead, kWrite };

    Array(nb::handle object, const char* name, Access access = kRead) : name_(name) {
        const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (access == kWrite ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            fail(std::string(name) + " must be a " + (access == kWrite ? "writable " : "") + "numpy array, got " +
                 nb::cast<std::string>(nb::str(object.type())));
        }
    }
    ~Array() { PyBuffer_Release(&view_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    int64_t dim(int i) const { return view_.shape[i]; }
    // In elements.
    int64_t stride(int i) const { return view_.strides[i] / view_.itemsize; }

    bool is(const DType& type) const {
        const char* f = view_.format;
        if (view_.itemsize != type.bytes || f[0] == 0 || f[1] != 0) return false;
        for (const char* c = type.codes; *c; ++c)
            if (*c == f[0]) return true;
        return false;
    }

    // Checks the type and the number of dimensions.
    void expect(const DType& type, int ndim, const char* shape) const {
        if (!is(type) || view_.ndim != ndim)
            fail(std::string(name_) + " must be " + type.name + " " + shape + ", got " + describe());
    }

    void expect_dim(int i, int64_t wanted, const char* why) const {
        if (dim(i) != wanted)
            fail(std::string(name_) + " must have " + std::to_string(wanted) + " in dimension " + std::to_string(i) +
                 " (" + why + "), got " + describe());
    }

    void expect_contiguous(int first = 0) const {
        int64_t wanted = 1;
        for (int i = view_.ndim - 1; i >= first; --i) {
            if (dim(i) > 1 && view_.strides[i] != wanted * view_.itemsize)
                fail(std::string(name_) + " must be C-contiguous" + (first ? " within a row" : "") + ", got " +
                     describe() + "; copy it with numpy.ascontiguousarray");
            wanted *= dim(i);
        }
        if (first && view_.strides[0] % view_.itemsize)
            fail(std::string(name_) + " has rows that are not aligned to its items; copy it");
    }

    template <class T>
    T* data() const {
        return static_cast<T*>(view_.buf);
    }

    // A float32 [rows, columns] whose rows are contiguous.
    template <class T>
    Matrix<T> matrix(const char* shape) const {
        expect(kFloat32, 2, shape);
        expect_contiguous(1);
        return Matrix<T>{data<T>(), dim(0), dim(1), stride(0)};
    }

    // A contiguous vector of a known length.
    template <class T>
    const T* vector(const DType& type, int64_t length, const char* why) const {
        expect(type, 1, "with one dimension");
        expect_dim(0, length, why);
        expect_contiguous();
        return data<const T>();
    }

    std::string describe() const {
        std::string text;
        for (const DType& type : {kFloat32, kFloat16, kUint16, kUint8, kInt8, kInt32, kInt64, kUint64})
            if (is(type)) text = type.name;
        if (text.empty()) text = std::string("format ") + view_.format;
        text += " [";
        for (int i = 0; i < view_.ndim; ++i) text += (i ? ", " : "") + std::to_string(dim(i));
        return text + "]";
    }

private:
    const char* name_;
    Py_buffer view_;
};

void expect_range(const char* name, int64_t index, int64_t value, int64_t low, int64_t end, const char* what) {
    if (value < low || value >= end)
        fail(std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) + ", outside " +
             std::to_string(low) + ".." + std::to_string(end - 1) + " (" + what + ")");
}

struct StoreDType {
    const char* name;
    StoreType type;
    const DType& raw;
};
constexpr StoreDType kStoreDTypes[] = {
    {"float32", StoreType::kFloat32, kFloat32},  {"float16", StoreType::kFloat16, kFloat16},
    {"bfloat16", StoreType::kBfloat16, kUint16}, {"fp8_e4m3", StoreType::kFp8E4m3, kUint8},
    {"fp8_e5m2", StoreType::kFp8E5m2, kUint8},   {"int8", StoreType::kInt8, kInt8}};

// A LayerStore: the tuple (keys, values, dtype, key scales, value scales, pairs), checked. Holds its arrays while it
// lives.
class StoreArrays {
public:
    explicit StoreArrays(nb::handle tuple, Array::Access access = Array::kRead)
        : dtype_(dtype_of(tuple)),
          keys_(PyTuple_GET_ITEM(tuple.ptr(), 0), "store.keys", access),
          values_(PyTuple_GET_ITEM(tuple.ptr(), 1), "store.values", access) {
        const std::string raw = std::string(dtype_.name) == dtype_.raw.name ? "" : std::string(", for ") + dtype_.name;
        keys_.expect(dtype_.raw, 4, ("[blocks, G, D, B]" + raw).c_str());
        values_.expect(dtype_.raw, 4, ("[blocks, G, B, D]" + raw).c_str());
        store_ = Store{keys_.data<void>(), values_.data<void>(), nullptr,      nullptr,     dtype_.type,
                       keys_.dim(0),       keys_.dim(1),         keys_.dim(2), keys_.dim(3)};
        values_.expect_dim(0, store_.blocks, "the blocks of the keys");
        values_.expect_dim(1, store_.heads, "the heads of the keys");
        values_.expect_dim(2, store_.block_size, "the block size of the keys");
        values_.expect_dim(3, store_.size, "the head size of the keys");
        keys_.expect_contiguous();
        values_.expect_contiguous();
        if (store_.block_size % kLanes || store_.block_size == 0)
            fail("a block must hold a multiple of 8 tokens, not " + std::to_string(store_.block_size));
        if (rounds(store_.type) && store_.size % 2)
            fail(std::string("a store of ") + dtype_.name + " needs a head of an even size, not " +
                 std::to_string(store_.size));
        if (!PyBool_Check(PyTuple_GET_ITEM(tuple.ptr(), 5))) fail("store.pairs must be a bool");
        if (PyTuple_GET_ITEM(tuple.ptr(), 5) == Py_True) {
            if (store_.type != StoreType::kBfloat16) fail("only a bfloat16 store can be in pairs");
            store_.type = StoreType::kBfloat16Pairs;
        }
        store_.key_scales = add_scales(tuple, 3, "store.key_scales", key_scales_, access);
        store_.value_scales = add_scales(tuple, 4, "store.value_scales", value_scales_, access);
    }

    const Store& store() const { return store_; }

private:
    static const StoreDType& dtype_of(nb::handle tuple) {
        const char* name = nullptr;
        if (PyTuple_Check(tuple.ptr()) && PyTuple_GET_SIZE(tuple.ptr()) == 6)
            name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple.ptr(), 2));
        if (name == nullptr) {
            PyErr_Clear();
            fail("store must be a LayerStore, got " + nb::cast<std::string>(nb::str(tuple.type())));
        }
        for (const StoreDType& each : kStoreDTypes)
            if (std::strcmp(each.name, name) == 0) return each;
        fail(std::string("store.dtype '") + name + "' is not one that the cpu backend supports");
    }

    void* add_scales(nb::handle tuple, int item, const char* name, std::optional<Array>& array, Array::Access access) {
        const bool by_token = store_.type == StoreType::kInt8;
        if (!by_token && dtype_.raw.bytes > 1) return nullptr;
        array.emplace(PyTuple_GET_ITEM(tuple.ptr(), item), name, by_token ? access : Array::kRead);
        if (by_token) {
            array->expect(kUint16, 3, "[blocks, G, B], bfloat16");
            array->expect_dim(0, store_.blocks, "the blocks of the keys");
            array->expect_dim(1, store_.heads, "the heads of the keys");
            array->expect_dim(2, store_.block_size, "the block size of the keys");
        } else {
            array->expect(kFloat32, 1, "[G]");
            array->expect_dim(0, store_.heads, "the heads of the keys");
        }
        array->expect_contiguous();
        return array->data<void>();
    }

    const StoreDType& dtype_;
    const Array keys_, values_;
    std::optional<Array> key_scales_, value_scales_;
    Store store_;
};

// Letting go of the interpreter lock lets another thread take it, and to get it back may take its switch interval of
// five milliseconds: more than a whole decode step. So it is kept for the microseconds of a small call.
class ReleaseIfLong {
public:
    explicit ReleaseIfLong(int64_t operations) {
        if (operations >= kLong) release_.emplace();
    }

private:
    static constexpr int64_t kLong = 4 << 20;
    std::optional<nb::gil_scoped_release> release_;
};

void bind_linear(Engine& e, nb::handle x_, const PackedLinear& w, nb::handle out_, bool add) {
    const Array x_array(x_, "x"), out_array(out_, "out", Array::kWrite);
    const auto x = x_array.matrix<const float>("[T, K]");
    const auto out = out_array.matrix<float>("[T, N]");
    x_array.expect_dim(1, w.inputs, "the weight's inputs");
    out_array.expect_dim(1, w.outputs, "the weight's outputs");
    out_array.expect_dim(0, x.rows, "the rows of x");
    const ReleaseIfLong release(x.rows * w.inputs * w.outputs);
    linear(e, x, w, out, add);
}

bool is_int8(const std::string& format) {
    if (format != "float32" && format != "int8")
        fail("weight format '" + format + "' is not one of float32, int8");
    return format == "int8";
}

void bind_save(Engine& e, const PackedLinear& w, nb::handle out_) {
    const Array out_array(out_, "out", Array::kWrite);
    out_array.vector<uint8_t>(kUint8, w.nbytes(), "the packed weight's bytes");
    save(e, w, out_array.data<uint8_t>());
}

PackedLinear bind_restore(Engine& e, nb::handle packed_, int64_t outputs, int64_t inputs, const std::string& format) {
    const Array packed_array(packed_, "packed");
    // Beyond that a matrix's bytes could not be counted.
    constexpr int64_t kMost = 1 << 28;
    if (outputs < 1 || inputs < 1 || outputs > kMost || inputs > kMost)
        fail("a weight cannot have " + std::to_string(outputs) + " outputs and " + std::to_string(inputs) + " inputs");
    PackedLinear w;
    w.outputs = outputs;
    w.inputs = inputs;
    w.int8 = is_int8(format);
    restore(e, packed_array.vector<uint8_t>(kUint8, w.nbytes(), "the packed weight's bytes"), w);
    return w;
}

PackedLinear bind_pack(Engine& e, nb::handle weight_, const std::string& format) {
    const Array weight_array(weight_, "weight");
    const auto weight = weight_array.matrix<const float>("[N, K]");
    const bool int8 = is_int8(format);
    if (weight.rows == 0 || weight.columns == 0) fail("weight is empty: " + weight_array.describe());
    for (int64_t i = 0; i < weight.rows; ++i) {
        uint32_t bad = 0;
        for (int64_t k = 0; k < weight.columns; ++k) {
            uint32_t bits;
            std::memcpy(&bits, weight.row(i) + k, sizeof bits);
            bad |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        if (bad) fail("weight has NaN or infinity in row " + std::to_string(i) + "; is the model file damaged?");
    }
    const ReleaseIfLong release(weight.rows * weight.columns);
    return pack(e, weight, int8);
}

void bind_rms_norm(Engine& e, nb::handle x_, nb::handle weight_, float eps, nb::handle out_) {
    const Array x_array(x_, "x"), weight_array(weight_, "weight"), out_array(out_, "out", Array::kWrite);
    const auto x = x_array.matrix<const float>("[T, K]");
    const auto out = out_array.matrix<float>("[T, K]");
    const float* weight = weight_array.vector<float>(kFloat32, x.columns, "the columns of x");
    out_array.expect_dim(0, x.rows, "the rows of x");
    out_array.expect_dim(1, x.columns, "the columns of x");
    const ReleaseIfLong release(x.rows * x.columns);
    rms_norm(e, x, weight, eps, out);
}

void bind_rotary_write(Engine& e, nb::handle qkv_, nb::handle positions_, nb::handle cos_, nb::handle sin_,
                       int64_t heads, nb::handle slots_, nb::handle store_) {
    const Array qkv_array(qkv_, "qkv", Array::kWrite), positions_array(positions_, "positions"), cos_array(cos_, "cos"),
        sin_array(sin_, "sin"), slots_array(slots_, "slots");
    const StoreArrays arrays(store_, Array::kWrite);
    const auto qkv = qkv_array.matrix<float>("[T, (H + 2G) * D]");
    const Store& store = arrays.store();
    qkv_array.expect_dim(1, (heads + 2 * store.heads) * store.size, "(H + 2G) * D");
    const int32_t* positions = positions_array.vector<int32_t>(kInt32, qkv.rows, "the rows of qkv");
    const int64_t* slots = slots_array.vector<int64_t>(kInt64, qkv.rows, "the rows of qkv");
    for (const Array* table : {&cos_array, &sin_array}) {
        table->expect(kFloat32, 2, "[max positions, rotary / 2]");
        table->expect_contiguous();
    }
    const int64_t half = cos_array.dim(1);
    sin_array.expect_dim(0, cos_array.dim(0), "the positions of cos");
    sin_array.expect_dim(1, half, "the columns of cos");
    if (2 * half > store.size)
        fail("cos has " + std::to_string(half) + " columns, but a head of size " + std::to_string(store.size) +
             " can rotate at most " + std::to_string(store.size / 2) + " pairs");
    for (int64_t i = 0; i < qkv.rows; ++i) {
        expect_range("positions", i, positions[i], 0, cos_array.dim(0), "the positions of cos");
        expect_range("slots", i, slots[i], -1, store.blocks * store.block_size, "the store's slots, or -1");
    }
    const ReleaseIfLong release(qkv.rows * qkv.columns);
    rotary_write(e, qkv, positions, cos_array.data<const float>(), sin_array.data<const float>(), half, heads, slots,
                 store);
}

void bind_attention(Engine& e, nb::handle q_, nb::handle store_, nb::handle tables_, nb::handle starts_,
                    nb::handle contexts_, float scale, nb::handle out_) {
    const Array q_array(q_, "q"), tables(tables_, "tables"), starts_array(starts_, "query_starts"),
        contexts_array(contexts_, "context_lens"), out(out_, "out", Array::kWrite);
    const StoreArrays arrays(store_);
    const Store& store = arrays.store();
    if (store.type == StoreType::kBfloat16Pairs && !e.kernels.pairs)
        fail(std::string("isa '") + e.kernels.isa + "' attends to no store in pairs");
    q_array.expect(kFloat32, 3, "[T, H, D]");
    q_array.expect_contiguous(1);
    out.expect(kFloat32, 3, "[T, H, D]");
    out.expect_contiguous();
    tables.expect(kInt32, 2, "[S, max blocks]");
    tables.expect_contiguous(1);
    const int64_t tokens = q_array.dim(0), heads = q_array.dim(1), sequences = tables.dim(0);
    q_array.expect_dim(2, store.size, "the store's head size");
    for (int i = 0; i < 3; ++i) out.expect_dim(i, q_array.dim(i), "as q");
    if (heads % store.heads)
        fail("q has " + std::to_string(heads) + " heads, not a multiple of the store's " + std::to_string(store.heads));
    const int32_t* starts = starts_array.vector<int32_t>(kInt32, sequences + 1, "sequences + 1");
    const int32_t* contexts = contexts_array.vector<int32_t>(kInt32, sequences, "sequences");
    if (starts[0] != 0 || starts[sequences] != tokens)
        fail("query_starts must run from 0 to the " + std::to_string(tokens) + " rows of q, not from " +
             std::to_string(starts[0]) + " to " + std::to_string(starts[sequences]));
    int64_t operations = 0;
    for (int64_t s = 0; s < sequences; ++s) {
        const int64_t queries = starts[s + 1] - starts[s], context = contexts[s];
        if (queries < 0) fail("query_starts must not decrease, but does after sequence " + std::to_string(s));
        if (queries == 0) continue;
        expect_range("context_lens", s, context, queries, tables.dim(1) * store.block_size + 1,
                     "its query rows to what its block table holds");
        const int32_t* table = tables.data<const int32_t>() + s * tables.stride(0);
        for (int64_t i = 0; i < (context + store.block_size - 1) / store.block_size; ++i)
            expect_range("tables row", i, table[i], 0, store.blocks, "the store's blocks");
        operations += queries * context * heads * store.size;
    }
    const Attention a{{q_array.data<const float>(), tokens, heads * store.size, q_array.stride(0)},
                      heads,
                      store,
                      tables.data<const int32_t>(),
                      tables.stride(0),
                      starts,
                      contexts,
                      sequences,
                      scale,
                      out.data<float>()};
    const ReleaseIfLong release(operations);
    attention(e, a);
}

void bind_silu_mul(Engine& e, nb::handle gate_up_, nb::handle out_) {
    const Array gate_up_array(gate_up_, "gate_up"), out_array(out_, "out", Array::kWrite);
    const auto gate_up = gate_up_array.matrix<const float>("[T, 2F]");
    const auto out = out_array.matrix<float>("[T, F]");
    gate_up_array.expect_dim(0, out.rows, "the rows of out");
    gate_up_array.expect_dim(1, 2 * out.columns, "twice the columns of out");
    const ReleaseIfLong release(out.rows * out.columns);
    silu_mul(e, gate_up, out);
}

void bind_copy_blocks(nb::handle store_, nb::handle pairs_) {
    const Array pairs(pairs_, "pairs");
    const StoreArrays arrays(store_, Array::kWrite);
    const Store& store = arrays.store();
    pairs.expect(kInt32, 2, "[pairs, 2]");
    pairs.expect_dim(1, 2, "source and destination");
    pairs.expect_contiguous();
    const int32_t* blocks = pairs.data<const int32_t>();
    for (int64_t i = 0; i < 2 * pairs.dim(0); ++i)
        expect_range("pairs", i / 2, blocks[i], 0, store.blocks, "the store's blocks");
    const ReleaseIfLong release(pairs.dim(0) * store.heads * store.size * store.block_size);
    copy_blocks(store, blocks, pairs.dim(0));
}

void expect_good(int64_t bad_row) {
    if (bad_row >= 0)
        fail("logits row " + std::to_string(bad_row) +
             " has NaN, or no finite largest value; check the model's weights");
}

void bind_sample(Engine& e, nb::handle logits_, nb::handle temperature_, nb::handle top_k_, nb::handle top_p_,
                 nb::handle min_p_, nb::handle seed_, nb::handle choice_, nb::handle position_, nb::handle tokens_) {
    const Array logits_array(logits_, "logits"), temperature(temperature_, "temperature"), top_k(top_k_, "top_k"),
        top_p(top_p_, "top_p"), min_p(min_p_, "min_p"), seed(seed_, "seed"), choice(choice_, "choice"),
        position(position_, "position"), tokens(tokens_, "tokens", Array::kWrite);
    const auto logits = logits_array.matrix<const float>("[R, V]");
    const char* why = "the rows of logits";
    const int64_t rows = logits.rows;
    const Sampling s{
        temperature.vector<float>(kFloat32, rows, why), top_k.vector<int32_t>(kInt32, rows, why),
        top_p.vector<float>(kFloat32, rows, why),       min_p.vector<float>(kFloat32, rows, why),
        seed.vector<uint64_t>(kUint64, rows, why),      choice.vector<uint64_t>(kUint64, rows, why),
        position.vector<uint64_t>(kUint64, rows, why)};
    tokens.vector<int32_t>(kInt32, rows, why);
    for (int64_t i = 0; i < rows; ++i)
        if (!(s.temperature[i] >= 0))
            fail("temperature[" + std::to_string(i) + "] is " + std::to_string(s.temperature[i]) + ", not 0 or more");
    int64_t bad;
    {
        const ReleaseIfLong release(logits.rows * logits.columns * 32);
        bad = sample(e, logits, s, tokens.data<int32_t>());
    }
    expect_good(bad);
}

void bind_log_probs(Engine& e, nb::handle logits_, nb::handle tokens_, nb::handle chosen_, nb::handle top_ids_,
                    nb::handle top_) {
    const Array logits_array(logits_, "logits"), tokens_array(tokens_, "tokens"),
        chosen(chosen_, "chosen", Array::kWrite), top_ids(top_ids_, "top_ids", Array::kWrite),
        top(top_, "top", Array::kWrite);
    const auto logits = logits_array.matrix<const float>("[R, V]");
    const int32_t* tokens = tokens_array.vector<int32_t>(kInt32, logits.rows, "the rows of logits");
    chosen.vector<float>(kFloat32, logits.rows, "the rows of logits");
    top_ids.expect(kInt32, 2, "[R, k]");
    top.expect(kFloat32, 2, "[R, k]");
    const int64_t k = top.dim(1);
    for (const Array* each : {&top_ids, &top}) {
        each->expect_dim(0, logits.rows, "the rows of logits");
        each->expect_dim(1, k, "k");
        each->expect_contiguous();
    }
    if (k > logits.columns)
        fail("k is " + std::to_string(k) + ", more than the " + std::to_string(logits.columns) + " columns of logits");
    for (int64_t i = 0; i < logits.rows; ++i)
        expect_range("tokens", i, tokens[i], 0, logits.columns, "the columns of logits");
    int64_t bad;
    {
        const ReleaseIfLong release(logits.rows * logits.columns * 32);
        bad = log_probs(e, logits, tokens, {chosen.data<float>(), top_ids.data<int32_t>(), top.data<float>(), k});
    }
    expect_good(bad);
}

void construct(Engine* at, int threads, const std::string& isa, bool share_prefixes) {
    if (threads < 1 || threads > 1024) fail("threads must be from 1 to 1024, not " + std::to_string(threads));
    new (at) Engine(kernels_for(isa), threads, share_prefixes);
}

}  // namespace

NB_MODULE(_cpu, m) {
    // What still lives when the interpreter ends is freed with the process; a user has no use for a list of it.
    nb::set_leak_warnings(false);
    nb::class_<PackedLinear>(m, "PackedLinear")
        .def_prop_ro("out_features", [](const PackedLinear& w) { return w.outputs; })
        .def_prop_ro("in_features", [](const PackedLinear& w) { return w.inputs; })
        .def_prop_ro("nbytes", &PackedLinear::nbytes)
        .def_prop_ro("weight_format", [](const PackedLinear& w) { return w.int8 ? "int8" : "float32"; });
    nb::class_<Engine>(m, "Engine")
        .def("__init__", &construct)
        .def_prop_ro("isa", [](const Engine& e) { return e.kernels.isa; })
        .def_prop_ro("pairs", [](const Engine& e) { return e.kernels.pairs; })
        .def_prop_ro("saturated_values", [](const Engine& e) { return e.saturated.load(); })
        .def_prop_ro("threads", [](const Engine& e) { return e.pool.threads(); })
        .def("pack_linear", &bind_pack)
        .def("save_linear", &bind_save)
        .def("restore_linear", &bind_restore)
        .def("linear", &bind_linear)
        .def("rms_norm", &bind_rms_norm)
        .def("rotary_write", &bind_rotary_write)
        .def("attention", &bind_attention)
        .def("silu_mul", &bind_silu_mul)
        .def("sample", &bind_sample)
        .def("log_probs", &bind_log_probs);
    m.def("copy_blocks", &bind_copy_blocks);
}

}  // namespace pageinn
