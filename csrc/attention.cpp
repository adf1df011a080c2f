// Cuts attention into strips of query rows and partitions of keys, and merges the partitions from left to right.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops.h"
#include "prefix.h"

namespace pageinn {
namespace {

// So many tiles are worth a copy of a partition's eight-bit numbers as bfloat16. Fewer wait for memory, and for the
// copy.
constexpr int64_t kWidenedTiles = 4;
// Rows that pass by a partition of keys while it is in the second-level cache.
constexpr int64_t kStripTiles = 16;
// Sequences with more rows than this make good use of the keys they read, and keep to themselves.
constexpr int64_t kFewRows = 4 * kTile;

// Rows that read the same keys: rows_[first], ..., of one sequence or of several with the same blocks.
struct Strip {
    int64_t first;
    int64_t rows;
    const int32_t* table;
    int64_t begin;  // partitions
    int64_t end;
    bool chained;  // each partition's result is kept apart, to be merged when all are there

    int64_t tiles() const { return (rows + kTile - 1) / kTile; }
};

// A run of a strip's partitions for one key-value head: what one thread does at a time.
struct Piece {
    int64_t strip;
    int64_t head;
    int64_t begin;
    int64_t end;
};

// Results of a tile: largest and total of each row, then the outputs.
int64_t tile_floats(int64_t size) { return kTile * (2 + size); }
Softmax tile_at(float* p) { return Softmax{p, p + kTile, p + 2 * kTile}; }
// Those of one row alone.
int64_t row_floats(int64_t size) { return 2 + size; }
Softmax row_at(float* p) { return Softmax{p, p + 1, p + 2}; }

int64_t partitions(int64_t keys) { return (keys + kPartition - 1) / kPartition; }

class Job {
public:
    Job(Engine& e, const Attention& a) : e_(e), a_(a), size_(a.store.size), group_(a.heads / a.store.heads) {}

    void run() {
        find_visible();
        find_shared();
        find_most();
        for (const SharedRun& run : shared_.runs) list_shared(run);
        for (int64_t s = 0; s < a_.sequences; ++s) list_own(s);
        thread_local std::vector<float> results;
        results_ = grown(results, result_floats_);
        e_.pool.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t i) { attend(pieces_[i]); });
        e_.pool.parallel_for(static_cast<int64_t>(chained_.size()), [&](int64_t i) { merge(chained_[i]); });
    }

private:
    int64_t queries(int64_t sequence) const { return a_.query_starts[sequence + 1] - a_.query_starts[sequence]; }

    // How many keys each query token sees, from position 0.
    void find_visible() {
        visible_.resize(a_.q.rows);
        chain_.resize(a_.q.rows, -1);
        for (int64_t s = 0; s < a_.sequences; ++s)
            for (int64_t i = 0; i < queries(s); ++i)
                visible_[a_.query_starts[s] + i] = a_.context_lens[s] - queries(s) + i + 1;
    }

    // Partitions that all rows of a sequence see whole may be read together with other sequences.
    void find_shared() {
        Tables tables{a_.tables, a_.table_width, a_.store.block_size, std::vector<int64_t>(a_.sequences)};
        if (e_.share_prefixes) {
            for (int64_t s = 0; s < a_.sequences; ++s)
                if (queries(s) > 0 && queries(s) * group_ <= kFewRows)
                    tables.whole[s] = visible_[a_.query_starts[s]] / kPartition;
        }
        shared_ = find_shared_prefixes(tables);
    }

    // How many times a tile and a partition may meet in a piece, for enough pieces to keep all threads busy.
    void find_most() {
        constexpr int64_t kPiecesPerThread = 8;
        int64_t total = 0;
        for (int64_t s = 0; s < a_.sequences; ++s)
            total += (queries(s) * group_ + kTile - 1) / kTile * partitions(a_.context_lens[s]);
        const int64_t threads = e_.pool.threads();
        most_ = std::max<int64_t>(1, total * a_.store.heads / (threads == 1 ? 1 : threads * kPiecesPerThread));
    }

    void list_pieces(const Strip& strip) {
        const int64_t number = static_cast<int64_t>(strips_.size());
        const int64_t step = strip.chained ? std::max<int64_t>(1, most_ / strip.tiles()) : strip.end;
        for (int64_t begin = strip.begin; begin < strip.end; begin += step)
            for (int64_t head = 0; head < a_.store.heads; ++head)
                pieces_.push_back({number, head, begin, std::min(begin + step, strip.end)});
        strips_.push_back(strip);
    }

    void list_shared(const SharedRun& run) {
        const int64_t first = static_cast<int64_t>(rows_.size());
        for (int64_t i = run.first; i < run.first + run.count; ++i) {
            const int64_t s = shared_.order[i];
            for (int64_t row = a_.query_starts[s] * group_; row < a_.query_starts[s + 1] * group_; ++row)
                rows_.push_back(row);
        }
        const int32_t* table = a_.tables + shared_.order[run.first] * a_.table_width;
        const int64_t most = kTile * std::clamp<int64_t>(most_, 1, kStripTiles);
        const int64_t end = static_cast<int64_t>(rows_.size());
        for (int64_t row = first; row < end; row += most)
            list_pieces({row, std::min(most, end - row), table, run.begin, run.end, true});
    }

    // Last tokens first: they see the most keys, and the largest pieces should not come at the end.
    void list_own(int64_t s) {
        if (queries(s) == 0) return;
        const int64_t all = partitions(a_.context_lens[s]);
        const bool chained = shared_.own[s] > 0 || all > most_;
        if (chained) chain(s);
        const int64_t most = kTile * std::clamp<int64_t>(most_ / all, 1, kStripTiles);
        const int64_t first = static_cast<int64_t>(rows_.size()), rows = queries(s) * group_;
        for (int64_t i = 0; i < rows; ++i) rows_.push_back(a_.query_starts[s] * group_ + i);
        for (int64_t row = (rows - 1) / most * most; row >= 0; row -= most) {
            const int64_t count = std::min(most, rows - row);
            const int64_t end = partitions(visible_[rows_[first + row + count - 1] / group_]);
            list_pieces({first + row, count, a_.tables + s * a_.table_width, shared_.own[s], end, chained});
        }
    }

    // Sets room aside for the results of every partition.
    void chain(int64_t s) {
        for (int64_t token = a_.query_starts[s]; token < a_.query_starts[s + 1]; ++token) {
            chain_[token] = result_floats_;
            result_floats_ += a_.heads * partitions(visible_[token]) * row_floats(size_);
            chained_.push_back(token);
        }
    }

    float* chain_at(int64_t token, int64_t head, int64_t partition) const {
        return results_ + chain_[token] + (head * partitions(visible_[token]) + partition) * row_floats(size_);
    }

    int64_t token_of(int64_t row) const { return rows_[row] / group_; }
    int64_t head_of(int64_t row, int64_t kv_head) const { return kv_head * group_ + rows_[row] % group_; }

    // Finds the partition's first `keys` keys.
    void find_runs(const Strip& strip, int64_t head, int64_t partition, int64_t keys, KeyRuns& runs) const {
        const Store& s = a_.store;
        const int64_t bytes = slot_bytes(s.type), numbers = side_by_side(s.type);
        const int64_t begin = partition * kPartition;
        int64_t count = 0, block = begin / s.block_size, offset = begin % s.block_size;
        for (; count * kLanes < keys; ++count) {
            const int64_t first = (strip.table[block] * s.heads + head) * s.block_size;
            runs.keys[count] = static_cast<const char*>(s.keys) + (first * s.size + offset * numbers) * bytes;
            runs.values[count] = static_cast<const char*>(s.values) + (first + offset) * s.size * bytes;
            if (s.type == StoreType::kInt8) {
                runs.key_scales[count] = static_cast<const Bfloat16*>(s.key_scales) + first + offset;
                runs.value_scales[count] = static_cast<const Bfloat16*>(s.value_scales) + first + offset;
            }
            offset += kLanes;
            if (offset == s.block_size) offset = 0, ++block;
        }
        for (int64_t i = 0; i < KeyRuns::kSpare; ++i) {
            runs.keys[count + i] = runs.keys[count - 1];
            runs.values[count + i] = runs.values[count - 1];
            if (s.type != StoreType::kInt8) continue;
            runs.key_scales[count + i] = runs.key_scales[count - 1];
            runs.value_scales[count + i] = runs.value_scales[count - 1];
        }
        for (int64_t i = 0; i < count + KeyRuns::kSpare; ++i) {
            const int64_t later = i + KeyRuns::kSpare;
            runs.later[i] = later < count ? runs.keys[later] : runs.values[std::min(later - count, count - 1)];
        }
    }

    // What the scores and the outputs of a head have to be multiplied by: its scale, and the unit that an e4m3 is read
    // in. Powers of two change no bit, and numbers without a scale are multiplied by one.
    float factor(const void* scales, int64_t head) const {
        const StoreType type = a_.store.type;
        if (type != StoreType::kFp8E4m3 && type != StoreType::kFp8E5m2) return 1.0f;
        return static_cast<const float*>(scales)[head] * (type == StoreType::kFp8E4m3 ? kE4m3Unit : 1.0f);
    }

    // Whether eight bits are widened before they are attended, not by each tile: the bits are the same.
    bool widens(const Strip& strip) const {
        const StoreType type = a_.store.type;
        const bool can = e_.kernels.pairs ? slot_bytes(type) == 1 : type == StoreType::kFp8E4m3;
        return can && strip.tiles() >= kWidenedTiles;
    }

    // What the store is then seen as. Only the scales of tokens are left to it.
    Store widened() const {
        Store store = a_.store;
        store.type = e_.kernels.pairs ? StoreType::kBfloat16Pairs : StoreType::kBfloat16;
        store.block_size = kWidenedBlock;
        if (a_.store.type != StoreType::kInt8) store.key_scales = store.value_scales = nullptr;
        return store;
    }

    // rounded: room for as many.
    void load_queries(const Strip& strip, int64_t head, float* q, Bfloat16* rounded) const {
        const float scale = a_.scale * factor(a_.store.key_scales, head);
        for (int64_t row = strip.first; row < strip.first + strip.rows; ++row, q += size_, rounded += size_) {
            const float* from = a_.q.row(token_of(row)) + head_of(row, head) * size_;
            for (int64_t d = 0; d < size_; ++d) q[d] = from[d] * scale;
            if (rounds(a_.store.type)) e_.kernels.round_row(q, size_, rounded);
        }
    }

    // The rows of a strip's tile. Rows see fewer keys the earlier their token; one takes no part in partitions beyond
    // its own last key.
    TilePart part(const Store& store, const Strip& strip, int64_t tile, int64_t partition, const KeyRuns& runs,
                  const float* q, const Bfloat16* rounded) const {
        const int64_t first = tile * kTile, rows = std::min<int64_t>(kTile, strip.rows - first);
        TilePart p{&store, &runs, q + first * size_, rounded + first * size_, static_cast<int>(rows), {}};
        for (int r = 0; r < p.rows; ++r) {
            const int64_t visible = visible_[token_of(strip.first + first + r)] - partition * kPartition;
            p.visible[r] = static_cast<int>(std::clamp<int64_t>(visible, 0, kPartition));
        }
        return p;
    }

    void attend(const Piece& piece) {
        const Strip& strip = strips_[piece.strip];
        thread_local std::vector<float> scratch;
        float* q = grown(scratch, strip.rows * size_ + (strip.tiles() + 1) * tile_floats(size_));
        float* states = q + strip.rows * size_;
        const Softmax next = tile_at(states + strip.tiles() * tile_floats(size_));
        thread_local std::vector<Bfloat16> rounded_scratch;
        Bfloat16* rounded = grown(rounded_scratch, strip.rows * size_);
        load_queries(strip, piece.head, q, rounded);
        thread_local std::vector<Pair> widened_scratch;
        Pair* room = widens(strip) ? grown(widened_scratch, kPartition * size_) : nullptr;
        const Store store = room ? widened() : a_.store;
        KeyRuns runs;
        for (int64_t partition = piece.begin; partition < piece.end; ++partition) {
            const int64_t seen = visible_[token_of(strip.first + strip.rows - 1)] - partition * kPartition;
            const int64_t keys = std::min<int64_t>(seen, kPartition);
            find_runs(strip, piece.head, partition, keys, runs);
            if (room) e_.kernels.widen(a_.store, (keys + kLanes - 1) / kLanes, runs, room);
            for (int64_t tile = 0; tile < strip.tiles(); ++tile) {
                const TilePart each = part(store, strip, tile, partition, runs, q, rounded);
                if (each.visible[each.rows - 1] == 0) continue;
                const Softmax state = tile_at(states + tile * tile_floats(size_));
                if (strip.chained) {
                    e_.kernels.attend(each, next);
                    keep(strip, piece.head, tile, partition, each, next);
                } else if (partition == 0) {
                    e_.kernels.attend(each, state);
                } else {
                    e_.kernels.attend(each, next);
                    for (int r = 0; r < each.rows; ++r)
                        if (each.visible[r] > 0) e_.kernels.merge_row(state, next, r, size_);
                }
            }
        }
        if (strip.chained) return;
        for (int64_t i = 0; i < strip.rows; ++i) {
            const Softmax state = tile_at(states + i / kTile * tile_floats(size_));
            write(token_of(strip.first + i), head_of(strip.first + i, piece.head), state, i % kTile);
        }
    }

    void keep(const Strip& strip, int64_t head, int64_t tile, int64_t partition, const TilePart& part,
              const Softmax& result) const {
        for (int r = 0; r < part.rows; ++r) {
            if (part.visible[r] == 0) continue;
            const int64_t row = strip.first + tile * kTile + r;
            const Softmax to = row_at(chain_at(token_of(row), head_of(row, head), partition));
            *to.largest = result.largest[r];
            *to.total = result.total[r];
            std::memcpy(to.output, result.output + r * size_, size_ * sizeof(float));
        }
    }

    // By the same function and in the same order as where nothing was kept apart.
    void merge(int64_t token) {
        for (int64_t head = 0; head < a_.heads; ++head) {
            const Softmax state = row_at(chain_at(token, head, 0));
            for (int64_t p = 1; p < partitions(visible_[token]); ++p)
                e_.kernels.merge_row(state, row_at(chain_at(token, head, p)), 0, size_);
            write(token, head, state, 0);
        }
    }

    void write(int64_t token, int64_t head, const Softmax& state, int64_t row) const {
        float* to = a_.out + (token * a_.heads + head) * size_;
        const float scale = factor(a_.store.value_scales, head / group_);
        for (int64_t d = 0; d < size_; ++d) to[d] = state.output[row * size_ + d] / state.total[row] * scale;
    }

    Engine& e_;
    const Attention& a_;
    const int64_t size_;
    const int64_t group_;  // query heads per key-value head: a token has so many rows
    SharedPrefixes shared_;
    int64_t most_ = 1;
    std::vector<int64_t> visible_;  // per token
    std::vector<int64_t> chain_;    // per token: where the results of its partitions begin, or -1
    std::vector<int64_t> chained_;  // tokens
    std::vector<int64_t> rows_;     // token * group_ + query head in the group
    std::vector<Strip> strips_;
    std::vector<Piece> pieces_;
    int64_t result_floats_ = 0;
    float* results_ = nullptr;
};

}  // namespace

void attention(Engine& e, const Attention& a) { Job(e, a).run(); }

}  // namespace pageinn
