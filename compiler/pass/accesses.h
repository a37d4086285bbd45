/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * accesses.h: which instructions of a function access memory that may miss the caches.
 * In: a function. Out: its accesses, block by block, in program order. Knows nothing of caches.
 */
#ifndef TIERCEL_PASS_ACCESSES_H
#define TIERCEL_PASS_ACCESSES_H

#include <cstdint>
#include <llvm/IR/Function.h>
#include <llvm/Support/Alignment.h>
#include <vector>

namespace tiercel {

/* Bytes of a cache line: LINE_BYTES of crates/memsim. */
constexpr uint64_t LineBytes = 64;

/* One instruction's access, or a piece of one. */
struct Access {
    llvm::Instruction *at;
    llvm::Value *pointer;
    uint64_t bytes;       /* 0: `length` says */
    llvm::Value *length;  /* bytes, of a range whose size is known when it runs */
    llvm::Value *lane_on; /* i1, of a lane of a gather or scatter; null: always */
    llvm::Align align;
    bool writes;
};

/* What separates accesses that may be merged from those that may not: a call may use the caches. */
bool is_barrier(const llvm::Instruction &instruction);

/* The accesses of a block. Adds the instructions that take lanes of gathers and scatters apart. */
std::vector<Access> accesses_of(llvm::BasicBlock &block);

} // namespace tiercel

#endif
