//! The C header, compiled, against this crate's numbers.

use std::io::Write;
use std::process::Command;

use tiercel_wire::layout::{self, control, header, offer};
use tiercel_wire::{SiteKind, emulator};

const HEADERS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/tiercel_wire.h"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/tiercel_emulator.h"),
];

/// (C expression, our number).
fn numbers() -> Vec<(&'static str, u64)> {
    let mut all = constants();
    all.extend(pools());
    all.extend(ring_and_tables());
    all.extend(header_and_control());
    all.extend(offers());
    all.extend(emulators_area());
    all
}

fn offers() -> Vec<(&'static str, u64)> {
    vec![
        ("sizeof(struct tcl_offer)", offer::BYTES as u64),
        ("offsetof(struct tcl_offer, version)", offer::VERSION as u64),
        ("offsetof(struct tcl_offer, attach_bytes)", offer::ATTACH_BYTES as u64),
        ("offsetof(struct tcl_offer, attach_ms)", offer::ATTACH_MS as u64),
        ("offsetof(struct tcl_offer, userfaultfds)", offer::USERFAULTFDS as u64),
        ("offsetof(struct tcl_offer, is_counted)", offer::IS_COUNTED as u64),
        ("offsetof(struct tcl_offer, began)", offer::BEGAN as u64),
        ("offsetof(struct tcl_offer, attached)", offer::ATTACHED as u64),
        ("offsetof(struct tcl_offer, failed)", offer::FAILED as u64),
        ("offsetof(struct tcl_offer, failed_step)", offer::FAILED_STEP as u64),
        ("offsetof(struct tcl_offer, failed_errno)", offer::FAILED_ERRNO as u64),
        ("offsetof(struct tcl_control, answer)", control::ANSWER as u64),
        ("offsetof(struct tcl_control, session)", control::SESSION as u64),
        ("offsetof(struct tcl_header, remarks)", header::REMARKS as u64),
        ("offsetof(struct tcl_header, small_top)", header::SMALL_TOP as u64),
        ("offsetof(struct tcl_header, forks)", header::FORKS as u64),
    ]
}

fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("TCL_MAGIC", layout::MAGIC.into()),
        ("TCL_WIRE_VERSION", layout::WIRE_VERSION.into()),
        ("TCL_PAGE", layout::OS_PAGE_BYTES),
        ("TCL_RING_RECORDS", layout::RING_RECORDS as u64),
        ("TCL_RINGS_MAX", layout::RINGS_MAX as u64),
        ("TCL_MODULES_MAX", layout::MODULES_MAX as u64),
        ("TCL_BUILD_ID_MAX", layout::BUILD_ID_MAX as u64),
        ("TCL_PATH_MAX", layout::PATH_MAX as u64),
        ("TCL_SITES_MAX", layout::SITES_MAX as u64),
        ("TCL_SITES_NAMED", layout::SITES_NAMED as u64),
        ("TCL_SITE_FRAMES", layout::SITE_FRAMES as u64),
        ("TCL_NO_MODULE", layout::NO_MODULE.into()),
        ("TCL_MAPS_MAX", layout::MAPS_MAX as u64),
        ("TCL_RANGE_PAGES_MAX", layout::RANGE_PAGES_MAX),
        ("TCL_ARENAS_MAX", layout::ARENAS_MAX as u64),
        ("TCL_ARENA_UNKNOWN", layout::ARENA_UNKNOWN.into()),
        ("TCL_SIZE_BITS", layout::SIZE_BITS.into()),
        ("TCL_NODE_NONE", i64::from(layout::NODE_NONE).cast_unsigned()),
        ("TCL_NODE_MODELLED", i64::from(layout::NODE_MODELLED).cast_unsigned()),
        ("TCL_SPACES", layout::SPACES as u64),
        ("TCL_STOPS_MAX", layout::STOPS_MAX as u64),
        ("TCL_PHASE_WAIT_MS_MAX", layout::PHASE_WAIT_MS_MAX.into()),
        ("TCL_MOVES_MAX", layout::MOVES_MAX as u64),
        ("sizeof(struct tcl_move)", layout::MOVE_BYTES as u64),
        ("sizeof(struct tcl_moved)", layout::MOVED_BYTES as u64),
        ("offsetof(struct tcl_move, bytes)", 8),
        ("offsetof(struct tcl_move, node)", 16),
        ("offsetof(struct tcl_moved, error)", 8),
        ("TCL_BACKING_KERNEL", tiercel_wire::Backing::Kernel as u64),
        ("TCL_BACKING_VMEM", tiercel_wire::Backing::Vmem as u64),
        ("TCL_NUMBERED_MAX", layout::NUMBERED_MAX.into()),
        ("TCL_NUMBERED_BYTES", layout::NUMBERED_BYTES),
        ("TCL_CUT_BYTES", layout::CUT_BYTES),
        ("TCL_HEAD_STEP", layout::HEAD_STEP),
        ("TCL_HEAD_WHOLE", layout::HEAD_WHOLE),
        ("TCL_PHASES_MAX", layout::PHASES_MAX as u64),
        ("sizeof(TCL_PHASE_START)", layout::PHASE_START.len() as u64 + 1),
        ("TCL_PHASE_START[0]", layout::PHASE_START.as_bytes()[0].into()),
        ("TCL_PHASE_NAME_MAX", layout::PHASE_NAME_MAX as u64),
        ("TCL_PLAN_ROWS_MAX", layout::PLAN_ROWS_MAX as u64),
        ("TCL_PLAN_CLASS_ANY", layout::PLAN_CLASS_ANY.into()),
        ("TCL_PLAN_SHARE_ALL", layout::PLAN_SHARE_ALL.into()),
        ("TCL_PLAN_RANGES", layout::PLAN_RANGES as u64),
        ("TCL_PLAN_PARTS", layout::PLAN_PARTS.into()),
        ("TCL_PLAN_OFFERED", layout::PLAN_OFFERED.into()),
        ("TCL_OFFER_BYTES", layout::OFFER_BYTES),
        ("sizeof(TCL_OFFER_SUFFIX)", layout::OFFER_SUFFIX.len() as u64 + 1),
        ("TCL_REMARK_OWN_MALLOC", layout::REMARK_OWN_MALLOC.into()),
        ("TCL_REMARK_LIMITED", layout::REMARK_LIMITED.into()),
        ("TCL_REMARK_NO_VREGIONS", layout::REMARK_NO_VREGIONS.into()),
        ("TCL_REMARK_THREADS", layout::REMARK_THREADS.into()),
        ("TCL_REMARK_MIXED", layout::REMARK_MIXED.into()),
        ("TCL_REMARK_PROBED", layout::REMARK_PROBED.into()),
        ("TCL_PHASES_AT", layout::PHASES_AT),
        ("TCL_PLAN_AT", layout::PLAN_AT),
        ("TCL_HEADER_AT", layout::HEADER_AT),
        ("TCL_CONTROL_AT", layout::CONTROL_AT),
        ("TCL_MODULES_AT", layout::MODULES_AT),
        ("TCL_SITES_AT", layout::SITES_AT),
        ("TCL_SMALLS_AT", layout::SMALLS_AT),
        ("TCL_MAPS_AT", layout::MAPS_AT),
        ("TCL_RINGS_AT", layout::RINGS_AT),
        ("TCL_RUNS_AT", layout::RUNS_AT),
        ("sizeof(struct tcl_hello)", tiercel_wire::Hello::BYTES as u64),
        ("sizeof(struct tcl_welcome)", tiercel_wire::Welcome::BYTES as u64),
    ]
}

fn pools() -> Vec<(&'static str, u64)> {
    vec![
        ("TCL_POOL_MAGIC", layout::POOL_MAGIC.into()),
        ("TCL_POOL_EMULATED", layout::POOL_EMULATED.into()),
        ("TCL_POOL_FILE", layout::POOL_FILE.into()),
        ("sizeof(struct tcl_pool_ask)", tiercel_wire::PoolAsk::BYTES as u64),
        ("offsetof(struct tcl_pool_ask, verb)", 8),
        ("offsetof(struct tcl_pool_ask, node)", 12),
        ("offsetof(struct tcl_pool_ask, bytes)", 16),
        ("offsetof(struct tcl_pool_ask, number)", 24),
        ("offsetof(struct tcl_pool_ask, vpage_shift)", 28),
        ("offsetof(struct tcl_pool_ask, secret)", 32),
        ("sizeof(struct tcl_pool_answer)", tiercel_wire::PoolAnswer::BYTES as u64),
        ("offsetof(struct tcl_pool_answer, status)", 8),
        ("offsetof(struct tcl_pool_answer, number)", 12),
        ("offsetof(struct tcl_pool_answer, bytes)", 16),
        ("offsetof(struct tcl_pool_answer, flags)", 24),
        ("offsetof(struct tcl_pool_answer, secret)", 32),
    ]
}

fn ring_and_tables() -> Vec<(&'static str, u64)> {
    vec![
        ("sizeof(struct tcl_record)", layout::RECORD_BYTES as u64),
        ("offsetof(struct tcl_record, size)", 8),
        ("offsetof(struct tcl_record, site)", 16),
        ("offsetof(struct tcl_record, carve)", 20),
        ("offsetof(struct tcl_record, time_high)", 18),
        ("offsetof(struct tcl_record, time_low)", 24),
        ("offsetof(struct tcl_record, generation)", 28),
        ("offsetof(struct tcl_record, kind)", 30),
        ("offsetof(struct tcl_record, flags_low)", 31),
        ("sizeof(struct tcl_ring)", layout::RING_BYTES as u64),
        ("offsetof(struct tcl_ring, head)", layout::RING_HEAD as u64),
        ("offsetof(struct tcl_ring, lost)", layout::RING_LOST as u64),
        ("offsetof(struct tcl_ring, state)", layout::RING_STATE as u64),
        ("offsetof(struct tcl_ring, tid)", layout::RING_TID as u64),
        ("offsetof(struct tcl_ring, tail)", layout::RING_TAIL as u64),
        ("offsetof(struct tcl_ring, records)", layout::RING_SLOTS as u64),
        ("sizeof(struct tcl_module)", layout::MODULE_BYTES as u64),
        ("offsetof(struct tcl_module, published)", layout::MODULE_PUBLISHED as u64),
        ("offsetof(struct tcl_module, build_id_bytes)", layout::MODULE_BUILD_ID_BYTES as u64),
        ("offsetof(struct tcl_module, build_id)", layout::MODULE_BUILD_ID as u64),
        ("offsetof(struct tcl_module, path_bytes)", layout::MODULE_PATH_BYTES as u64),
        ("offsetof(struct tcl_module, path)", layout::MODULE_PATH as u64),
        ("sizeof(struct tcl_site)", layout::SITE_BYTES as u64),
        ("offsetof(struct tcl_site, published)", layout::SITE_PUBLISHED as u64),
        ("offsetof(struct tcl_site, frame_count)", layout::SITE_FRAME_COUNT as u64),
        ("offsetof(struct tcl_site, kind)", layout::SITE_KIND as u64),
        ("offsetof(struct tcl_site, frames)", layout::SITE_FRAMES_AT as u64),
        ("sizeof(struct tcl_phase_name)", layout::PHASE_BYTES as u64),
        ("offsetof(struct tcl_phase_name, published)", layout::PHASE_PUBLISHED as u64),
        ("offsetof(struct tcl_phase_name, name_bytes)", layout::PHASE_NAME_BYTES as u64),
        ("offsetof(struct tcl_phase_name, name)", layout::PHASE_NAME as u64),
        ("sizeof(struct tcl_plan_row)", layout::PLAN_ROW_BYTES as u64),
        ("offsetof(struct tcl_plan_row, phase)", 8),
        ("offsetof(struct tcl_plan_row, size_class)", 16),
        ("offsetof(struct tcl_plan_row, arena)", 17),
        ("offsetof(struct tcl_plan_row, other)", 18),
        ("offsetof(struct tcl_plan_row, share)", 19),
        ("offsetof(struct tcl_plan_row, ranges)", 24),
        ("sizeof(struct tcl_plan_range)", 4),
        ("offsetof(struct tcl_plan_range, to)", 2),
        ("sizeof(struct tcl_run)", layout::RUN_BYTES as u64),
        ("offsetof(struct tcl_run, identity)", 8),
        ("sizeof(struct tcl_small)", layout::SMALL_BYTES as u64),
        ("offsetof(struct tcl_small, live_bytes)", 8),
        ("offsetof(struct tcl_small, births)", 16),
        ("offsetof(struct tcl_small, lives)", 20),
        ("offsetof(struct tcl_small, deaths)", 24),
        ("offsetof(struct tcl_small, life_ms)", 28),
        ("sizeof(struct tcl_map)", layout::MAP_BYTES as u64),
        ("offsetof(struct tcl_map, size)", 8),
        ("offsetof(struct tcl_map, site)", 16),
        ("offsetof(struct tcl_map, carve)", 20),
        ("offsetof(struct tcl_map, generation)", 24),
        ("offsetof(struct tcl_map, flags_low)", 26),
        ("offsetof(struct tcl_map, arena)", 27),
        ("offsetof(struct tcl_map, share)", layout::MAP_SHARE as u64),
        ("TCL_SITE_CALL", SiteKind::Call as u64),
        ("TCL_SITE_STATIC", SiteKind::Static as u64),
        ("TCL_SITE_CONSTANT", SiteKind::Constant as u64),
        ("TCL_SITE_MAIN_STACK", SiteKind::MainStack as u64),
        ("TCL_SITE_STACK", SiteKind::Stack as u64),
        ("TCL_SITE_SHARED", SiteKind::Shared as u64),
        ("TCL_SITE_FILE", SiteKind::File as u64),
    ]
}

fn header_and_control() -> Vec<(&'static str, u64)> {
    vec![
        ("offsetof(struct tcl_header, magic)", header::MAGIC as u64),
        ("offsetof(struct tcl_header, version)", header::VERSION as u64),
        ("offsetof(struct tcl_header, total_bytes)", header::TOTAL_BYTES as u64),
        ("offsetof(struct tcl_header, range_base)", header::RANGE_BASE as u64),
        ("offsetof(struct tcl_header, range_pages)", header::RANGE_PAGES as u64),
        ("offsetof(struct tcl_header, pid)", header::PID as u64),
        ("offsetof(struct tcl_header, module_count)", header::MODULE_COUNT as u64),
        ("offsetof(struct tcl_header, site_count)", header::SITE_COUNT as u64),
        ("offsetof(struct tcl_header, site_overflows)", header::SITE_OVERFLOWS as u64),
        ("offsetof(struct tcl_header, ring_high_water)", header::RING_HIGH_WATER as u64),
        ("offsetof(struct tcl_header, map_high_water)", header::MAP_HIGH_WATER as u64),
        ("offsetof(struct tcl_header, run_high_water)", header::RUN_HIGH_WATER as u64),
        ("offsetof(struct tcl_header, lost_without_ring)", header::LOST_WITHOUT_RING as u64),
        ("offsetof(struct tcl_header, map_overflows)", header::MAP_OVERFLOWS as u64),
        ("offsetof(struct tcl_header, detached)", header::DETACHED as u64),
        ("offsetof(struct tcl_header, reason)", header::REASON as u64),
        ("sizeof(((struct tcl_header *)0)->reason)", header::REASON_BYTES as u64),
        ("offsetof(struct tcl_control, magic)", control::MAGIC as u64),
        ("offsetof(struct tcl_control, version)", control::VERSION as u64),
        ("offsetof(struct tcl_control, clock)", control::CLOCK as u64),
        ("offsetof(struct tcl_control, kernel_arena)", control::KERNEL_ARENA as u64),
        ("offsetof(struct tcl_control, fast_nodes)", control::FAST_NODES as u64),
        ("offsetof(struct tcl_control, probe)", control::PROBE as u64),
        ("offsetof(struct tcl_control, nursery_arena)", control::NURSERY_ARENA as u64),
        ("offsetof(struct tcl_probe_terms, shift)", 4),
        ("offsetof(struct tcl_probe_terms, caches)", 8),
        ("sizeof(struct tcl_probe_cache)", 8),
        ("offsetof(struct tcl_header, lost_misses)", header::LOST_MISSES as u64),
        ("offsetof(struct tcl_control, arena_count)", control::ARENA_COUNT as u64),
        ("offsetof(struct tcl_control, small_arena)", control::SMALL_ARENA as u64),
        ("offsetof(struct tcl_control, arena_node)", control::ARENA_NODE as u64),
        ("offsetof(struct tcl_control, birth_bytes_left)", control::BIRTH_BYTES_LEFT as u64),
        ("offsetof(struct tcl_header, phase_entered)", header::PHASE_ENTERED as u64),
        ("offsetof(struct tcl_header, phase_count)", header::PHASE_COUNT as u64),
        ("offsetof(struct tcl_header, phase_overflows)", header::PHASE_OVERFLOWS as u64),
        ("offsetof(struct tcl_control, phase_wait_ms)", control::PHASE_WAIT_MS as u64),
        ("offsetof(struct tcl_control, plan)", control::PLAN as u64),
        ("offsetof(struct tcl_control, unplanned_arena)", control::UNPLANNED_ARENA as u64),
        ("offsetof(struct tcl_control, space_arena)", control::SPACE_ARENA as u64),
        ("offsetof(struct tcl_control, phase_done)", control::PHASE_DONE as u64),
        ("offsetof(struct tcl_control, stops)", control::STOPS as u64),
        ("offsetof(struct tcl_control, numbered_births)", control::NUMBERED_BIRTHS as u64),
        ("offsetof(struct tcl_control, backing)", control::BACKING as u64),
        ("offsetof(struct tcl_control, moves_asked)", control::MOVES_ASKED as u64),
        ("offsetof(struct tcl_control, move_count)", control::MOVE_COUNT as u64),
        ("offsetof(struct tcl_control, moves)", control::MOVES as u64),
        ("offsetof(struct tcl_header, is_mover)", header::IS_MOVER as u64),
        ("offsetof(struct tcl_header, moves_done)", header::MOVES_DONE as u64),
        ("offsetof(struct tcl_header, moved)", header::MOVED as u64),
        ("offsetof(struct tcl_header, idle_bytes)", header::IDLE_BYTES as u64),
        ("offsetof(struct tcl_control, detach)", control::DETACH as u64),
    ]
}

fn emulators_area() -> Vec<(&'static str, u64)> {
    vec![
        ("TCLE_MAGIC", emulator::MAGIC),
        ("TCLE_VERSION", emulator::VERSION),
        ("TCLE_AREA_BYTES", emulator::AREA_BYTES as u64),
        ("TCLE_VCPUS_MAX", emulator::VCPUS_MAX as u64),
        ("TCLE_RING_RECORDS", emulator::RING_RECORDS as u64),
        ("TCLE_PERIOD_MAX", emulator::PERIOD_MAX),
        ("offsetof(struct tcle_control, magic)", emulator::MAGIC_AT as u64),
        ("offsetof(struct tcle_control, version)", emulator::VERSION_AT as u64),
        ("offsetof(struct tcle_control, vcpus)", emulator::VCPUS_AT as u64),
        ("offsetof(struct tcle_control, clock_ns)", emulator::CLOCK_AT as u64),
        ("offsetof(struct tcle_control, owner)", emulator::OWNER_AT as u64),
        ("offsetof(struct tcle_control, period)", emulator::PERIOD_AT as u64),
        ("offsetof(struct tcle_control, current_at)", emulator::CURRENT_AT as u64),
        ("offsetof(struct tcle_control, task_at)", emulator::TASK_AT as u64),
        ("offsetof(struct tcle_control, wants)", emulator::WANTS_AT as u64),
        ("offsetof(struct tcle_control, origin_ns)", emulator::ORIGIN_AT as u64),
        ("TCLE_BLOCK_BYTES", emulator::BLOCK_BYTES),
        ("TCLE_BLOCKS", emulator::BLOCKS as u64),
        ("offsetof(struct tcle_area, rings)", emulator::RINGS_AT as u64),
        ("sizeof(struct tcle_ring)", emulator::RING_BYTES as u64),
        ("offsetof(struct tcle_ring, head)", 0),
        ("offsetof(struct tcle_ring, lost)", emulator::RING_LOST as u64),
        ("offsetof(struct tcle_ring, tail)", emulator::RING_TAIL as u64),
        ("offsetof(struct tcle_ring, records)", emulator::RING_SLOTS as u64),
        ("sizeof(struct tcle_record)", emulator::RECORD_WORDS as u64 * 8),
        ("offsetof(struct tcle_record, address)", 8),
        ("offsetof(struct tcle_record, physical)", 16),
        ("offsetof(struct tcle_record, instruction)", 24),
        ("offsetof(struct tcle_record, process)", 32),
        ("offsetof(struct tcle_record, thread)", 36),
        ("offsetof(struct tcle_record, latency_ns)", 40),
        ("offsetof(struct tcle_record, weight)", 44),
        ("offsetof(struct tcle_record, node)", 48),
        ("offsetof(struct tcle_record, kind)", 50),
        ("offsetof(struct tcle_record, flags)", 51),
        ("offsetof(struct tcle_record, at_once)", 52),
        ("offsetof(struct tcle_record, misses)", 56),
        ("offsetof(struct tcle_record, instructions)", 60),
    ]
}

#[test]
fn every_number_equals_the_c_headers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    HEADERS.iter().for_each(|header| text += &format!("#include \"{header}\"\n"));
    text += "int main(void) {\n";
    for (expression, _) in numbers() {
        text += &format!("printf(\"%llu\\n\", (unsigned long long)({expression}));\n");
    }
    text += "}\n";
    std::fs::File::create(&source).and_then(|mut f| f.write_all(text.as_bytes())).expect("write");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c17", "-Werror", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("a C compiler named cc").success());
    let output = Command::new(&program).output().expect("runs").stdout;
    let printed = String::from_utf8(output).expect("digits");
    assert_eq!(printed.lines().count(), numbers().len());
    for ((expression, ours), theirs) in numbers().into_iter().zip(printed.lines()) {
        assert_eq!(ours.to_string(), theirs, "{expression}");
    }
}
