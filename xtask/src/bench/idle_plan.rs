//! A plan that changes nothing. In: how many sites. Out: the plan's text. Knows nothing of what is
//! measured with it.

/// Sites of a large plan; no program allocates at any of them.
pub const PLANNED_SITES: usize = 10_000;

/// A plan as `tiercel plan` writes it, for sites that no program has.
pub fn idle_plan(sites: usize) -> String {
    let site = |index: usize| {
        let placement = serde_json::json!({ "node": 0, "gain_ns": 0.0, "confidence": 0.0 });
        let class = serde_json::json!({
            "up_to_bytes": 4096, "objects": 1, "peak_bytes": 4096, "placements": [placement],
        });
        let hash = format!("{:016x}", (index as u64 + 1) << 40);
        serde_json::json!({ "hash": hash, "label": "x", "stack": [], "classes": [class] })
    };
    let memory =
        |node: u16| serde_json::json!({ "name": "x", "nodes": [node], "capacity_bytes": 1 });
    let expected = serde_json::json!({
        "access_ns": 0.0, "in_slowest_ns": 0.0, "in_fastest_ns": 0.0, "moved_bytes": 0,
    });
    let plan = serde_json::json!({
        "format": "tiercel plan",
        "version": 3,
        "program": { "path": "", "build_id": "" },
        "machine": { "name": "spr-cxl", "memories": [memory(0), memory(1)] },
        "options": { "strategy": "joint", "objective": "time", "fast": "all" },
        "expected": expected,
        "unplanned": "budget",
        "modules": [],
        "sites": (0..sites).map(site).collect::<Vec<_>>(),
    });
    plan.to_string()
}
