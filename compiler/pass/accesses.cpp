/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * accesses.cpp: see accesses.h.
 *
 * Left out is what no placement can help, as it is always in a cache or never an object of its own:
 * objects on the stack below an OS page or that no other function knows, global data below an OS
 * page, thread-local data, and what other passes count for themselves.
 */
#include "accesses.h"
#include "globals.h"
#include <llvm/Analysis/CaptureTracking.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Module.h>

using namespace llvm;

namespace tiercel {
namespace {

bool is_small_global(const GlobalVariable &global) {
    return global.isThreadLocal() || (global.hasInitializer() && bytes_of(global) < ObjectBytes);
}

bool is_own_stack(const AllocaInst &object) {
    auto bytes = object.getAllocationSize(object.getModule()->getDataLayout());
    if (bytes && !bytes->isScalable() && bytes->getFixedValue() < ObjectBytes)
        return true;
    return !PointerMayBeCaptured(&object, /*ReturnCaptures=*/true, /*StoreCaptures=*/true);
}

bool is_counted(const Value *pointer) {
    if (pointer->getType()->getPointerAddressSpace() != 0)
        return false;
    const Value *object = getUnderlyingObject(pointer);
    if (auto *global = dyn_cast<GlobalVariable>(object))
        return !is_small_global(*global);
    if (auto *local = dyn_cast<AllocaInst>(object))
        return !is_own_stack(*local);
    if (auto *call = dyn_cast<IntrinsicInst>(object))
        return call->getIntrinsicID() != Intrinsic::threadlocal_address;
    return !isa<ConstantPointerNull>(object);
}

/* Collects the accesses of a block. */
class Collector {
  public:
    explicit Collector(const DataLayout &layout) : layout(layout) {}
    std::vector<Access> found;

    void take(Instruction &at) {
        if (auto *load = dyn_cast<LoadInst>(&at))
            typed(at, load->getPointerOperand(), load->getType(), load->getAlign(), false);
        else if (auto *store = dyn_cast<StoreInst>(&at))
            typed(at, store->getPointerOperand(), store->getValueOperand()->getType(),
                  store->getAlign(), true);
        else if (auto *change = dyn_cast<AtomicRMWInst>(&at))
            typed(at, change->getPointerOperand(), change->getType(), change->getAlign(), true);
        else if (auto *change = dyn_cast<AtomicCmpXchgInst>(&at))
            typed(at, change->getPointerOperand(), change->getNewValOperand()->getType(),
                  change->getAlign(), true);
        else if (auto *call = dyn_cast<IntrinsicInst>(&at))
            intrinsic(*call);
    }

  private:
    const DataLayout &layout;

    void add(const Access &access) {
        if (is_counted(access.pointer))
            found.push_back(access);
    }

    void typed(Instruction &at, Value *pointer, Type *type, Align align, bool writes) {
        TypeSize bytes = layout.getTypeStoreSize(type);
        if (!bytes.isScalable() && bytes.getFixedValue() > 0)
            add({&at, pointer, bytes.getFixedValue(), nullptr, nullptr, align, writes});
    }

    void intrinsic(IntrinsicInst &call) {
        if (auto *copy = dyn_cast<MemTransferInst>(&call)) {
            range(call, copy->getRawSource(), copy->getLength(), false);
            range(call, copy->getRawDest(), copy->getLength(), true);
        } else if (auto *fill = dyn_cast<MemSetInst>(&call)) {
            range(call, fill->getRawDest(), fill->getLength(), true);
        } else {
            masked(call);
        }
    }

    void range(Instruction &at, Value *pointer, Value *length, bool writes) {
        auto *known = dyn_cast<ConstantInt>(length);
        if (known && known->getZExtValue() <= LineBytes) {
            if (uint64_t bytes = known->getZExtValue())
                add({&at, pointer, bytes, nullptr, nullptr, Align(1), writes});
        } else {
            add({&at, pointer, 0, length, nullptr, Align(1), writes});
        }
    }

    void masked(IntrinsicInst &call) {
        switch (call.getIntrinsicID()) {
        case Intrinsic::masked_load:
            return typed(call, call.getArgOperand(0), call.getType(), Align(1), false);
        case Intrinsic::masked_store:
            return typed(call, call.getArgOperand(1), call.getArgOperand(0)->getType(), Align(1),
                         true);
        case Intrinsic::masked_gather:
            return lanes(call, call.getArgOperand(0), call.getArgOperand(2), call.getType(), false);
        case Intrinsic::masked_scatter:
            return lanes(call, call.getArgOperand(1), call.getArgOperand(3),
                         call.getArgOperand(0)->getType(), true);
        default:
            return;
        }
    }

    void lanes(Instruction &at, Value *pointers, Value *mask, Type *type, bool writes) {
        auto *vector = dyn_cast<FixedVectorType>(type);
        if (!vector)
            return;
        uint64_t bytes = layout.getTypeStoreSize(vector->getElementType());
        IRBuilder<> build(&at);
        for (uint64_t lane = 0; lane < vector->getNumElements(); lane++) {
            Value *pointer = build.CreateExtractElement(pointers, lane);
            Value *is_on = build.CreateExtractElement(mask, lane);
            add({&at, pointer, bytes, nullptr, is_on, Align(1), writes});
        }
    }
};

} // namespace

bool is_barrier(const Instruction &instruction) {
    auto *call = dyn_cast<CallBase>(&instruction);
    return call && (!isa<IntrinsicInst>(call) || isa<MemIntrinsic>(call));
}

std::vector<Access> accesses_of(BasicBlock &block) {
    Collector collector(block.getModule()->getDataLayout());
    for (Instruction &at : make_early_inc_range(block))
        if (!at.hasMetadata(LLVMContext::MD_nosanitize))
            collector.take(at);
    return std::move(collector.found);
}

} // namespace tiercel
