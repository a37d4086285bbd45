//! Patterns of births and deaths.
//! In: a [`Writer`]. Out: its script. Knows nothing of what is done to them.

use super::Writer;
use crate::stream::{Piece, RANDOM, SEQUENTIAL, UPDATES};
use tiercel_machine::number::{index, saturating_u64};

/// Bytes of a kibibyte.
const KIB: u64 = 1 << 10;
/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;

/// Graph kernels: a few arrays are born in each round beside a large one, and are the hot ones.
pub(super) fn churn(writer: &mut Writer) {
    let graph = writer.filled(writer.set.clone().below(24) * MIB + 20 * MIB, 1);
    let (count, bytes) = (writer.pick(&[1, 2, 4]), writer.pick(&[512 * KIB, MIB, 2 * MIB]));
    let round = writer.pick(&[2, 6, 20]);
    let share = writer.pick(&[0.3, 0.5, 0.8]);
    let places: Vec<Piece> = (0..count).map(|_| writer.script.reserve(bytes)).collect();
    let mut live: Vec<Piece> = Vec::new();
    for step in 0..writer.steps {
        if step.is_multiple_of(round) {
            live.drain(..).for_each(|piece| writer.script.died(piece));
            for place in &places {
                live.push(writer.script.born_at(*place, 2));
                writer.fill(*place);
            }
        }
        let hot = saturating_u64(writer.misses as f64 * share);
        for piece in &live {
            writer.script.access(*piece, hot / live.len() as u64, UPDATES);
        }
        let at = |step: u64| step as f64 / round as f64;
        let part = graph.part(at(step % round), at(step % round + 1));
        writer.script.access(part, writer.misses - hot, SEQUENTIAL);
        writer.step();
    }
}

/// Vectors that are appended to while they are used.
pub(super) fn growing(writer: &mut Writer) {
    let (count, most) = (writer.pick(&[1, 2, 4]), writer.pick(&[8 * MIB, 16 * MIB]));
    let moves = writer.pick(&[true, false]);
    let fixed = writer.filled(16 * MIB, 9);
    let growth = (2 * most / writer.steps).max(4 * KIB) / (4 * KIB) * (4 * KIB);
    let mut vectors: Vec<Piece> = (0..count)
        .map(|nth| {
            let place = writer.script.reserve(if moves { 64 * KIB } else { most });
            writer.script.born_at(Piece { bytes: 64 * KIB, ..place }, nth + 1)
        })
        .collect();
    let mut capacities = vec![64 * KIB; vectors.len()];
    for _ in 0..writer.steps {
        for nth in 0..vectors.len() {
            let old = vectors[nth];
            let bytes = (old.bytes + growth).min(most);
            if bytes > old.bytes {
                vectors[nth] = grown(writer, (old, &mut capacities[nth]), bytes, moves);
            }
            let each = writer.misses / 2 / vectors.len() as u64;
            writer.script.access(vectors[nth], each, RANDOM);
        }
        writer.script.access(fixed, writer.misses / 2, RANDOM);
        writer.step();
    }
}

/// A vector with so many bytes: in place, or twice as large elsewhere when it is full.
fn grown(
    writer: &mut Writer,
    (old, capacity): (Piece, &mut u64),
    bytes: u64,
    moves: bool,
) -> Piece {
    let site = 3;
    if !moves || bytes <= *capacity {
        let new = writer.script.resized(old, bytes, site);
        let more = Piece { addr: old.addr + old.bytes, bytes: bytes - old.bytes };
        writer.script.fill(more);
        return new;
    }
    *capacity = (*capacity * 2).max(bytes);
    let place = writer.script.reserve(*capacity);
    let new = writer.script.born_at(Piece { bytes, ..place }, site);
    writer.script.access(old, old.bytes / 64, SEQUENTIAL);
    writer.fill(new);
    writer.script.died(old);
    new
}

/// A structure is read in, squeezed into a new one and freed.
pub(super) fn squeeze(writer: &mut Writer) {
    let raw = writer.pick(&[24 * MIB, 32 * MIB, 48 * MIB]);
    let part = writer.pick(&[2, 3]);
    let count = writer.pick(&[4, 8]);
    let old = writer.objects(count, raw / count);
    let new: Vec<Piece> = old
        .iter()
        .map(|piece| {
            writer.script.access(*piece, piece.bytes / 64, SEQUENTIAL);
            let made = writer.filled(piece.bytes / part, 2);
            writer.script.died(*piece);
            made
        })
        .collect();
    let order = writer.chance.order(new.len());
    let hot = (new.len() / 4).max(1);
    let share = writer.pick(&[0.5, 0.8]);
    for _ in 0..writer.steps {
        let of_hot = saturating_u64(writer.misses as f64 * share);
        for nth in &order[..hot] {
            writer.script.access(new[*nth], of_hot / hot as u64, RANDOM);
        }
        let each = (writer.misses - of_hot) / new.len() as u64;
        new.iter().for_each(|piece| writer.script.access(*piece, each, RANDOM));
        writer.step();
    }
}

/// Two programs in turns, a millisecond each.
pub(super) fn tenants(writer: &mut Writer) {
    let sizes = [writer.pick(&[8, 16]), writer.pick(&[16, 32])];
    let mut sets: Vec<Vec<Piece>> = Vec::new();
    for (pid, mib) in (1..).zip(sizes) {
        writer.script.of_process(pid);
        sets.push(writer.objects(mib, MIB));
    }
    let orders: Vec<Vec<usize>> = sets.iter().map(|set| writer.chance.order(set.len())).collect();
    let (part, share) = (writer.pick(&[0.1, 0.25]), writer.pick(&[0.7, 0.9]));
    let stops = writer.pick(&[1.0, 0.5]);
    for step in 0..writer.steps {
        // The second may be idle in the last half.
        let is_late = step as f64 > writer.steps as f64 * stops;
        for (pid, (set, order)) in (1..).zip(sets.iter().zip(&orders)) {
            if is_late && pid == 2 {
                continue;
            }
            writer.script.of_process(pid);
            let hot = index(saturating_u64(set.len() as f64 * part).max(1));
            let misses = writer.misses / 2;
            let of_hot = saturating_u64(misses as f64 * share);
            for nth in &order[..hot] {
                writer.script.access(set[*nth], of_hot / hot as u64, RANDOM);
            }
            let cold = set[index(writer.chance.below(set.len() as u64))];
            writer.script.access(cold, misses - of_hot, RANDOM);
            writer.script.work(writer.step_ns / 2);
        }
    }
}
