/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * globals.cpp: see globals.h. What is in a section of the program's choice stays as it is: arrays
 * that the linker puts together out of many variables have no room between them.
 */
#include "globals.h"

using namespace llvm;

namespace tiercel {

uint64_t bytes_of(const GlobalVariable &global) {
    Type *type = global.getValueType();
    if (!type->isSized())
        return 0;
    return global.getParent()->getDataLayout().getTypeAllocSize(type);
}

static bool may_align(const GlobalVariable &global) {
    return global.hasInitializer() && !global.isThreadLocal() && !global.hasSection() &&
           !global.hasAvailableExternallyLinkage() && !global.hasAppendingLinkage() &&
           bytes_of(global) >= ObjectBytes;
}

bool align_large(Module &module) {
    bool has_changed = false;
    for (GlobalVariable &global : module.globals()) {
        if (!may_align(global) || global.getAlign().valueOrOne() >= Align(ObjectBytes))
            continue;
        global.setAlignment(Align(ObjectBytes));
        has_changed = true;
    }
    return has_changed;
}

} // namespace tiercel
