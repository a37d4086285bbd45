//! The same problem as an integer program for HiGHS: the reference for the fast path.
//! In: a problem. Out: its best choice, however long that takes. Knows nothing of prices.
//!
//! ```text
//!   x(s,m)     1: segment s lies in memory m         sum over m of x(s,m) = 1
//!   y(s,m,n)   it then goes from m to n              sum over n of y(s,m,n) = x(s,m)
//!                                                    sum over m of y(s,m,n) = x(s+1,n)
//!   room       in each slot and memory: the sum of bytes / capacity is at most 1
//! ```
//!
//! Only x must be whole: y is a flow between whole numbers. Slots in which a memory can hold all
//! that lives need no row. Costs are scaled to the largest one, because solvers use absolute
//! tolerances.

use highs::{Col, HighsModelStatus, RowProblem, Sense};

use crate::exact::ALIKE;
use crate::problem::{Item, Problem};
use crate::room::Room;

/// Largest program, in coefficients of rows: some minutes of a solver, and 100 MB.
const COEFFICIENTS_MAX: usize = 1 << 22;
/// HiGHS's tolerance for whole numbers and constraints, its smallest but one.
const TOLERANCE: f64 = 1e-9;

/// The best choice. `None`: there is none, the program is too large, or the solver found none
/// within its tolerances.
pub fn solve(problem: &Problem) -> Option<Vec<u8>> {
    let finite = problem.costs.iter().copied().filter(|cost| cost.is_finite());
    let largest = finite.map(f64::abs).fold(f64::MIN_POSITIVE, f64::max);
    let mut program = Program {
        rows: RowProblem::default(),
        places: vec![None; problem.costs.len()],
        scale: 1.0 / largest,
    };
    for item in &problem.items {
        program.add_item(problem, item);
    }
    program.add_room(problem)?;
    let mut model = program.rows.try_optimise(Sense::Minimise).ok()?;
    model.make_quiet();
    for (option, value) in [
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.0),
        ("mip_feasibility_tolerance", TOLERANCE),
        ("primal_feasibility_tolerance", TOLERANCE),
    ] {
        model.set_option(option, value);
    }
    let solved = model.try_solve().ok()?;
    if solved.status() != HighsModelStatus::Optimal {
        return None;
    }
    let values = solved.get_solution();
    let choice = program.places.chunks(problem.memories).map(|of_segment| {
        let value = |place: &Option<Col>| -> f64 { place.map_or(-1.0, |col| values[col]) };
        let by_value = |a: &usize, b: &usize| {
            value(&of_segment[*a]).total_cmp(&value(&of_segment[*b])).then(b.cmp(a))
        };
        (0..of_segment.len()).max_by(by_value).map_or(0, |memory| memory as u8)
    });
    let choice: Vec<u8> = choice.collect();
    let promised = solved.objective_value() * largest;
    let alike = (problem.value(&choice) - promised).abs() <= promised.abs() * 1e3 * ALIKE + ALIKE;
    (alike && Room::of(problem, &choice).keeps(&problem.capacity)).then_some(choice)
}

struct Program {
    rows: RowProblem,
    /// By segment and memory; `None`: not allowed.
    places: Vec<Option<Col>>,
    scale: f64,
}

impl Program {
    fn add_item(&mut self, problem: &Problem, item: &Item) {
        let memories = problem.memories;
        for segment in item.segments() {
            let is_first = segment == item.segments().start;
            for memory in 0..memories {
                let came = if is_first { problem.move_cost(item, item.at, memory) } else { 0.0 };
                let cost = problem.cost(segment, memory) + came;
                self.places[segment * memories + memory] = cost
                    .is_finite()
                    .then(|| self.rows.add_integer_column(cost * self.scale, 0..=1));
            }
            let ways = self.places[segment * memories..][..memories].iter().flatten();
            let one: Vec<(Col, f64)> = ways.map(|col| (*col, 1.0)).collect();
            self.rows.add_row(1..=1, one);
        }
        for segment in item.segments().skip(1) {
            self.add_flow(problem, item, segment - 1);
        }
    }

    /// From a segment to the next one.
    fn add_flow(&mut self, problem: &Problem, item: &Item, segment: usize) {
        let memories = problem.memories;
        let place = |places: &[Option<Col>], segment: usize, memory: usize| {
            places[segment * memories + memory]
        };
        let mut flow = vec![None; memories * memories];
        for from in 0..memories {
            for to in 0..memories {
                let both = place(&self.places, segment, from).is_some()
                    && place(&self.places, segment + 1, to).is_some();
                let cost = problem.move_cost(item, Some(from as u8), to) * self.scale;
                flow[from * memories + to] = both.then(|| self.rows.add_column(cost, 0..=1));
            }
        }
        for memory in 0..memories {
            let out = (0..memories).filter_map(|to| flow[memory * memories + to]);
            let out: Vec<Col> = out.collect();
            let into = (0..memories).filter_map(|from| flow[from * memories + memory]);
            let into: Vec<Col> = into.collect();
            for (col, flow) in [
                (place(&self.places, segment, memory), out),
                (place(&self.places, segment + 1, memory), into),
            ] {
                let Some(col) = col else { continue };
                let sum = flow.into_iter().map(|way| (way, 1.0)).chain([(col, -1.0)]);
                self.rows.add_row(0..=0, sum.collect::<Vec<_>>());
            }
        }
    }

    /// `None`: too many coefficients.
    fn add_room(&mut self, problem: &Problem) -> Option<()> {
        let (memories, alive) = (problem.memories, problem.alive());
        let mut taken: Vec<Vec<(Col, f64)>> = vec![Vec::new(); problem.slots * memories];
        let mut coefficients = 0;
        for item in &problem.items {
            for segment in item.segments() {
                let span = problem.spans[segment];
                for memory in 0..memories {
                    let capacity = problem.capacity[memory];
                    let col = self.places[segment * memories + memory];
                    let Some(col) = col.filter(|_| capacity > 0) else { continue };
                    for slot in span.first as usize..=span.last as usize {
                        if alive[slot] > capacity {
                            let share = item.bytes as f64 / capacity as f64;
                            taken[slot * memories + memory].push((col, share));
                            coefficients += 1;
                        }
                    }
                    if coefficients > COEFFICIENTS_MAX {
                        return None;
                    }
                }
            }
        }
        for row in taken.into_iter().filter(|row| !row.is_empty()) {
            self.rows.add_row(..=1, row);
        }
        Some(())
    }
}
