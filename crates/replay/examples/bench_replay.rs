//! The default policy on streams that it was never tuned on: how much of what is possible it
//! misses, and whom it harms; the same when it sees values wrongly, or little.
//! In: `--quick` for one size of fast memory and few seeds. Out: bench rows, one JSON line each.
//! Knows nothing of clocks: all figures are modelled time, and the same on every machine.

use tiercel_bench::BenchResult;
use tiercel_machine::Machine;
use tiercel_replay::{Bench, Comparison, Half, Model, Speeds, preset, recipes};

/// Of what perfect knowledge gains that pays for its moves, so much may be missed.
const MISSED_MAX: f64 = 0.10;
/// So much slower than first touch a stream may be, with 95% confidence.
const HARM_MAX: f64 = 0.03;
/// So much slower all streams may be in the mean with a hundredth of the samples.
const BLIND_MAX: f64 = 1.05;
/// The first seed.
const SEED: u64 = 1;

/// One line, as `cargo xtask bench` reads it.
fn main() {
    let is_quick = std::env::args().any(|arg| arg == "--quick");
    let usual = compare(is_quick, Model::default());
    report("held out", &usual);
    for (name, scale) in
        [("values three times too high", 3.0), ("a third of the values", 1.0 / 3.0)]
    {
        let model = Model { scale, ..Model::default() };
        report(&format!("held out, {name}"), &compare(is_quick, model));
    }
    let period = Model::default().period * 100;
    let blind = compare(is_quick, Model { period, ..Model::default() });
    report("held out, a hundredth of the samples", &blind);
    let slower = speed(&usual) / speed(&blind);
    print_row("a hundredth of the samples against all", slower, BLIND_MAX, "times as long");
}

fn compare(is_quick: bool, model: Model) -> Vec<Comparison> {
    let machine = Machine::builtin("cascadelake-optane").expect("built in").expect("sound");
    let (per_mille, seeds) = if is_quick { (vec![250], 4) } else { (vec![125, 250, 500], 10) };
    let bench = Bench {
        speeds: Speeds::new(&machine).expect("two tiers with figures"),
        contenders: preset("tiercel").expect("a preset"),
        per_mille,
        seed: SEED,
        seeds,
        model,
    };
    let held_out = recipes().into_iter().filter(|recipe| recipe.half == Half::HeldOut);
    let compared = held_out.map(|recipe| bench.compare(&recipe.stream(SEED)));
    compared.flat_map(|of_stream| of_stream.expect("the default policy is sound")).collect()
}

fn report(name: &str, comparisons: &[Comparison]) {
    let possible = mean(comparisons, |one| 1.0 - 1.0 / one.bound_speed);
    let gained = mean(comparisons, |one| {
        let runs = &one.results[0].runs;
        1.0 - runs.iter().map(|run| run.time_ns).sum::<f64>()
            / runs.len() as f64
            / one.first_touch_ns
    });
    print_row(
        &format!("{name}: missed of the bound's gain"),
        1.0 - gained / possible,
        MISSED_MAX,
        "",
    );
    let low = |one: &Comparison| one.results[0].speed.low_95.expect("several seeds");
    let worst = comparisons.iter().min_by(|a, b| low(a).total_cmp(&low(b))).expect("some");
    let at = worst.per_mille as f64 / 10.0;
    let name = format!("{name}: largest loss, {} at {at}%", worst.stream);
    print_row(&name, 1.0 - low(worst), HARM_MAX, "of first touch");
}

/// Geometric mean over first touch.
fn speed(comparisons: &[Comparison]) -> f64 {
    mean(comparisons, |one| one.results[0].speed.mean.ln()).exp()
}

fn mean(comparisons: &[Comparison], of: impl Fn(&Comparison) -> f64) -> f64 {
    comparisons.iter().map(of).sum::<f64>() / comparisons.len() as f64
}

fn print_row(name: &str, ours: f64, limit: f64, unit: &str) {
    println!("{}", BenchResult::alone(name.into(), ours, Some(limit), unit));
}
