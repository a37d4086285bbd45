/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * emit.cpp: see emit.h. What is inline, of a load at `p`, in x86-64:
 *
 *   lea  eax, [p]                      its line, hashed, is below the limit: it is sampled.
 *   and  eax, -64                      The limit is 0 where nothing is recorded.
 *   imul eax, eax, TIERCEL_PROBE_HASH
 *   cmp  eax, [tiercel_probe_limit]
 *   jb   calls tiercel_probe_access    preserve_most: only r11 and vector registers may change
 */
#include "emit.h"
#include "../../include/tiercel_probe.h"
#include "probes.h"
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

using namespace llvm;

namespace tiercel {
namespace {

class Emitter {
  public:
    explicit Emitter(Module &module) : module(module), context(module.getContext()) {
        word = Type::getInt32Ty(context);
        address = module.getDataLayout().getIntPtrType(context);
        limit = cast<GlobalVariable>(module.getOrInsertGlobal("tiercel_probe_limit", word));
        limit->setVisibility(GlobalValue::HiddenVisibility);
        limit->setDSOLocal(true);
        access = probe("tiercel_probe_access", {address, word});
        range = probe("tiercel_probe_range", {address, address, word});
    }

    void check(const Check &one) {
        IRBuilder<> build(one.first.at);
        Value *at = build.CreatePtrToInt(one.first.pointer, address);
        if (one.first.length || one.span() > LineBytes)
            return check_range(one, at);
        Value *low = build.CreateAdd(at, ConstantInt::getSigned(address, one.low));
        if (one.step)
            return check_edge(one, at);
        Value *is_sampled = sampled(build, low);
        if (one.straddles()) {
            Value *last = build.CreateAdd(at, ConstantInt::getSigned(address, one.high - 1));
            is_sampled = build.CreateOr(is_sampled, sampled(build, last));
        }
        if (one.first.lane_on)
            is_sampled = build.CreateAnd(is_sampled, one.first.lane_on);
        call(then(is_sampled, one.first.at), one, access, {low, what(one, one.span())});
    }

  private:
    Module &module;
    LLVMContext &context;
    Type *word, *address;
    GlobalVariable *limit;
    FunctionCallee access, range;

    FunctionCallee probe(StringRef name, ArrayRef<Type *> arguments) {
        auto *type = FunctionType::get(Type::getVoidTy(context), arguments, false);
        FunctionCallee callee = declare_probe(module, name, type);
        cast<Function>(callee.getCallee())->addFnAttr(Attribute::Cold);
        return callee;
    }

    /* Its return address stands for the access: it has that one's line. */
    void call(Instruction *before, const Check &one, FunctionCallee callee,
              ArrayRef<Value *> arguments) {
        IRBuilder<> build(before);
        if (one.where)
            build.SetCurrentDebugLocation(one.where);
        build.CreateCall(callee, arguments)->setCallingConv(CallingConv::PreserveMost);
    }

    Constant *what(const Check &one, uint64_t span) {
        uint32_t flags = (one.first.writes ? TIERCEL_PROBE_WRITES : 0) |
                         (one.dirties ? TIERCEL_PROBE_DIRTIES : 0) |
                         one.pattern << TIERCEL_PROBE_PATTERN_SHIFT;
        return ConstantInt::get(word, flags | span << TIERCEL_PROBE_SPAN_SHIFT);
    }

    /* Where to write what is done when `condition` holds, which it seldom does. */
    Instruction *then(Value *condition, Instruction *before) {
        MDNode *weights = MDBuilder(context).createUnlikelyBranchWeights();
        return SplitBlockAndInsertIfThen(condition, before, false, weights);
    }

    Value *load_limit(IRBuilder<> &build) { return build.CreateLoad(word, limit); }

    Value *sampled(IRBuilder<> &build, Value *at) {
        Value *line = build.CreateAnd(build.CreateTrunc(at, word),
                                      ConstantInt::getSigned(word, -(int64_t)LineBytes));
        Value *hash = build.CreateMul(line, ConstantInt::get(word, TIERCEL_PROBE_HASH));
        return build.CreateICmpULT(hash, load_limit(build));
    }

    void check_range(const Check &one, Value *at) {
        IRBuilder<> build(one.first.at);
        Value *is_on = build.CreateICmpNE(load_limit(build), ConstantInt::get(word, 0));
        Value *bytes = one.first.length ? build.CreateZExtOrTrunc(one.first.length, address)
                                        : ConstantInt::get(address, one.span());
        call(then(is_on, one.first.at), one, range, {at, bytes, what(one, 0)});
    }

    /* The leading edge is in a line that it was not in an iteration ago. */
    void check_edge(const Check &one, Value *at) {
        IRBuilder<> build(one.first.at);
        int64_t edge = one.step > 0 ? one.high - 1 : one.low;
        Value *lead = build.CreateAdd(at, ConstantInt::getSigned(address, edge));
        Instruction *before = one.first.at;
        if (std::abs(one.step) < static_cast<int64_t>(LineBytes)) {
            Value *offset = build.CreateAnd(lead, ConstantInt::get(address, LineBytes - 1));
            before = then(has_entered(build, offset, one.step), before);
        }
        IRBuilder<> entered(before);
        call(then(sampled(entered, lead), before), one, access, {lead, what(one, 1)});
    }

    Value *has_entered(IRBuilder<> &build, Value *offset, int64_t step) {
        if (step < 0)
            return build.CreateICmpUGE(offset, ConstantInt::get(address, LineBytes + step));
        return build.CreateICmpULT(offset, ConstantInt::get(address, step));
    }
};

} // namespace

void emit(Module &module, const std::vector<Check> &checks) {
    Emitter emitter(module);
    for (const Check &one : checks)
        emitter.check(one);
}

} // namespace tiercel
