/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * plan.cpp: see plan.h. The fields are those of crates/plan/src/model.rs.
 */
#include "plan.h"
#include <llvm/IR/DebugInfoMetadata.h>
#include <llvm/Support/JSON.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/Path.h>

using namespace llvm;

namespace tiercel {
namespace {

/* The class in which plans have blocks of small objects: BLOCK_BYTES of runtime/track/birth.c. */
constexpr int64_t BlockBytes = 64 << 10;

std::string place(StringRef function, StringRef file, int64_t line) {
    return (simple_name(function) + " " + sys::path::filename(file) + ":" + Twine(line)).str();
}

/* Rank of the memory that has a node, 0 the fastest; -1: none has. */
int rank_of(const json::Array &memories, int64_t node) {
    for (size_t rank = 0; rank < memories.size(); rank++) {
        const json::Object *memory = memories[rank].getAsObject();
        const json::Array *nodes = memory ? memory->getArray("nodes") : nullptr;
        for (size_t n = 0; nodes && n < nodes->size(); n++)
            if ((*nodes)[n].getAsInteger() == node)
                return static_cast<int>(rank);
    }
    return -1;
}

/* The placement of small objects in all phases; null: the plan has none. */
const json::Object *placement_of(const json::Object &site) {
    const json::Array *classes = site.getArray("classes");
    for (size_t n = 0; classes && n < classes->size(); n++) {
        const json::Object *one = (*classes)[n].getAsObject();
        bool is_it = classes->size() == 1 || one->getInteger("up_to_bytes") == BlockBytes;
        const json::Array *placements = one->getArray("placements");
        if (is_it && placements && !placements->empty())
            return placements->front().getAsObject();
    }
    return nullptr;
}

/* Of births that are split, the memory of most; less than two of three are not most. Chosen, not
 * measured: the others lie in memory of the wrong kind. */
const double Most = 2.0 / 3.0;

/* The node of births; nothing: they are in two memories. */
std::optional<int64_t> node_of(const json::Object &placement) {
    std::optional<int64_t> other = placement.getInteger("other");
    const json::Array *ranges = placement.getArray("ranges");
    double share = other ? 0.0 : 1.0;
    for (size_t n = 0; other && ranges && n < ranges->size(); n++)
        if (const json::Object *range = (*ranges)[n].getAsObject())
            share += range->getNumber("to").value_or(0.0) - range->getNumber("from").value_or(0.0);
    if (share >= Most)
        return placement.getInteger("node");
    return share <= 1.0 - Most ? other : std::nullopt;
}

/* Memories between the fastest and the slowest have no class; nor have births in two memories. */
Temperature temperature_of(const json::Object &site, const json::Array &memories) {
    const json::Object *where = placement_of(site);
    std::optional<int64_t> node = where ? node_of(*where) : std::nullopt;
    if (!node || memories.size() < 2)
        return Temperature::Unknown;
    int rank = rank_of(memories, *node);
    if (rank == 0)
        return Temperature::Hot;
    return rank + 1 == static_cast<int>(memories.size()) ? Temperature::Cold : Temperature::Unknown;
}

Error damaged(StringRef path) {
    return createStringError(path + " is not a plan; create one with `tiercel plan`");
}

} // namespace

std::string simple_name(StringRef name) {
    std::string rest = name.str();
    const StringRef anonymous = "(anonymous namespace)::";
    for (size_t at; (at = rest.find(anonymous)) != std::string::npos;)
        rest.erase(at, anonymous.size());
    StringRef cut = StringRef(rest).take_until([](char c) { return c == '(' || c == '<'; });
    return cut.substr(cut.find_last_of(": ") + 1).str();
}

std::vector<std::string> places_of(const DebugLoc &at) {
    std::vector<std::string> places;
    for (const DILocation *here = at.get(); here; here = here->getInlinedAt()) {
        const DISubprogram *function = here->getScope()->getSubprogram();
        if (!here->getLine() || !function)
            return {};
        places.push_back(place(function->getName(), here->getFilename(), here->getLine()));
    }
    return places;
}

Temperature Plan::of(const std::vector<std::string> &places, std::string &known) const {
    for (const std::string &place : places)
        if (auto found = births.find(place); found != births.end()) {
            known = place;
            return found->second;
        }
    return Temperature::Unknown;
}

/* `function file:line`; a site without lines has another label. */
void Plan::add(StringRef label, Temperature temperature) {
    auto [function, where] = label.rsplit(' ');
    auto [known, is_new] =
        births.try_emplace(simple_name(function) + " " + where.str(), temperature);
    if (!is_new && known->second != temperature)
        known->second = Temperature::Ambiguous;
}

Expected<Plan> Plan::read(StringRef path) {
    auto buffer = MemoryBuffer::getFile(path);
    if (!buffer)
        return createStringError(buffer.getError(), "cannot read " + path);
    Expected<json::Value> whole = json::parse((*buffer)->getBuffer());
    if (!whole) {
        consumeError(whole.takeError());
        return damaged(path);
    }
    const json::Object *file = whole->getAsObject();
    const json::Object *machine = file ? file->getObject("machine") : nullptr;
    const json::Array *memories = machine ? machine->getArray("memories") : nullptr;
    const json::Array *sites = file ? file->getArray("sites") : nullptr;
    if (!memories || !sites)
        return damaged(path);
    Plan plan;
    if (const json::Array *phases = file->getArray("phases"))
        for (const json::Value &phase : *phases)
            plan.phases.insert(phase.getAsObject()->getString("name").value_or(""));
    for (const json::Value &site : *sites)
        plan.add(site.getAsObject()->getString("label").value_or(""),
                 temperature_of(*site.getAsObject(), *memories));
    return plan;
}

const Plan *Plan::of_process(Module &module) {
    struct Known {
        std::optional<Plan> plan;
        std::string error;
        Known() {
            const char *path = getenv("TIERCEL_PLAN");
            Expected<Plan> read = Plan::read(path ? path : "");
            if (read)
                plan = std::move(*read);
            else
                error = toString(read.takeError());
        }
    };
    static const Known known; /* lld runs passes in threads */
    if (!known.plan)
        module.getContext().emitError("tiercel: " + known.error);
    return known.plan ? &*known.plan : nullptr;
}

} // namespace tiercel
