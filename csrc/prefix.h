// Finds sequences of a call whose block tables begin with the same blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace pageinn {

// Block tables of a call. whole[s]: how many partitions of keys sequence s may read together with others.
struct Tables {
    const int32_t* blocks;
    int64_t width;
    int64_t block_size;
    std::vector<int64_t> whole;
};

// The sequences order[first], ..., order[first + count - 1] have the same blocks up to partition `end`.
struct SharedRun {
    int64_t first;
    int64_t count;
    int64_t begin;  // partition; up to here a run of more sequences reaches
    int64_t end;
};

// A tree of runs of two sequences or more, a run before those that branch off it.
struct SharedPrefixes {
    std::vector<int64_t> order;
    std::vector<SharedRun> runs;
    std::vector<int64_t> own;  // per sequence, the first partition that it reads alone
};

SharedPrefixes find_shared_prefixes(const Tables&);

}  // namespace pageinn
