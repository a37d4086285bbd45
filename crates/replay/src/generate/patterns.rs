//! Patterns over objects that live as long as the program.
//! In: a [`Writer`]. Out: its script. Knows nothing of births and deaths.

use super::Writer;
use crate::stream::{CHASED, Manner, Piece, RANDOM, SEQUENTIAL, STENCIL, UPDATES};
use tiercel_machine::number::{index, saturating_u64};

/// Bytes of a kibibyte.
const KIB: u64 = 1 << 10;
/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;

/// Objects, and how the hot ones are accessed.
struct Scene {
    objects: Vec<Piece>,
    /// Shuffled: what is hot is nowhere in particular, and first touch does not know it.
    order: Vec<usize>,
    hot: usize,
    /// Share of the misses that the hot ones have.
    share: f64,
    manner: Manner,
}

impl Scene {
    fn new(writer: &mut Writer) -> Scene {
        let mib = writer.pick(&[24, 32, 48, 64]);
        let bytes = writer.pick(&[256 * KIB, 512 * KIB, MIB, 2 * MIB]);
        let objects = writer.objects(mib * MIB / bytes, bytes);
        let order = writer.chance.order(objects.len());
        let part = writer.pick(&[0.08, 0.12, 0.2, 0.3]);
        let hot = index(saturating_u64(objects.len() as f64 * part).max(1));
        let share = writer.pick(&[0.7, 0.8, 0.9, 0.95]);
        let manner = writer.pick(&[RANDOM, UPDATES, SEQUENTIAL, CHASED]);
        Scene { objects, order, hot, share, manner }
    }

    /// A step in which `hot` objects from `first` of the order on are hot, and some others cold.
    fn step(&self, writer: &mut Writer, first: usize) {
        let all = self.objects.len();
        let of_hot = saturating_u64(writer.misses as f64 * self.share / self.hot as f64);
        for nth in 0..self.hot {
            let object = self.objects[self.order[(first + nth) % all]];
            writer.script.access(object, of_hot, self.manner);
        }
        let cold = (all / 8).max(1);
        let of_cold = saturating_u64(writer.misses as f64 * (1.0 - self.share) / cold as f64);
        for _ in 0..cold {
            let object = self.objects[index(writer.chance.below(all as u64))];
            writer.script.access(object, of_cold, self.manner);
        }
        writer.step();
    }
}

pub(super) fn hot(writer: &mut Writer) {
    let scene = Scene::new(writer);
    (0..writer.steps).for_each(|_| scene.step(writer, 0));
}

pub(super) fn moving(writer: &mut Writer) {
    let scene = Scene::new(writer);
    // Half a second to two.
    let every = writer.pick(&[100, 200, 400]);
    for step in 0..writer.steps {
        scene.step(writer, index(step / every) * scene.hot);
    }
}

pub(super) fn turns(writer: &mut Writer) {
    let scene = Scene::new(writer);
    let (sets, every) = (writer.pick(&[2, 3]), writer.pick(&[5, 20, 60, 150]));
    for step in 0..writer.steps {
        scene.step(writer, index(step / every % sets) * scene.hot);
    }
}

pub(super) fn drift(writer: &mut Writer) {
    let scene = Scene::new(writer);
    let every = writer.pick(&[4, 10, 25, 60]);
    for step in 0..writer.steps {
        scene.step(writer, index(step / every));
    }
}

pub(super) fn scan(writer: &mut Writer) {
    let bytes = writer.pick(&[24 * MIB, 40 * MIB, 64 * MIB]);
    let (array, small) = (writer.filled(bytes, 1), writer.filled(2 * MIB, 2));
    let (round, share) = (writer.pick(&[20, 50, 130]), writer.pick(&[0.0, 0.1, 0.4]));
    for step in 0..writer.steps {
        let at = |step: u64| step as f64 / round as f64;
        let part = array.part(at(step % round), at(step % round + 1));
        let beside = saturating_u64(writer.misses as f64 * share);
        writer.script.access(part, writer.misses - beside, SEQUENTIAL);
        writer.script.access(small, beside, RANDOM);
        writer.step();
    }
}

pub(super) fn uniform(writer: &mut Writer) {
    let mib = writer.pick(&[24, 48, 64]);
    let manner = writer.pick(&[RANDOM, UPDATES, SEQUENTIAL]);
    let objects = writer.objects(mib / 8, 8 * MIB);
    for _ in 0..writer.steps {
        let each = writer.misses / objects.len() as u64;
        objects.iter().for_each(|object| writer.script.access(*object, each, manner));
        writer.step();
    }
}

pub(super) fn zipf(writer: &mut Writer) {
    let parts = 64;
    let bytes = writer.pick(&[512 * KIB, MIB]);
    let array = writer.filled(parts * bytes, 1);
    let (exponent, manner) = (writer.pick(&[0.6, 0.9, 1.2]), writer.pick(&[RANDOM, UPDATES]));
    let order = writer.chance.order(index(parts));
    let weight = |rank: usize| ((rank + 1) as f64).powf(-exponent);
    let all: f64 = (0..order.len()).map(weight).sum();
    for _ in 0..writer.steps {
        for (rank, part) in order.iter().enumerate() {
            let at = |part: usize| part as f64 / parts as f64;
            let misses = saturating_u64(writer.misses as f64 * weight(rank) / all);
            writer.script.access(array.part(at(*part), at(part + 1)), misses, manner);
        }
        writer.step();
    }
}

pub(super) fn halves(writer: &mut Writer) {
    let (bytes, count) = (writer.pick(&[8 * MIB, 16 * MIB, 32 * MIB]), writer.pick(&[1, 2, 3]));
    let objects = writer.objects(count, bytes);
    let (from, part) = (writer.pick(&[0.0, 0.3, 0.7]), writer.pick(&[0.06, 0.12, 0.25]));
    let share = writer.pick(&[0.7, 0.85, 0.95]);
    let each = writer.misses / count;
    for _ in 0..writer.steps {
        for object in &objects {
            let hot = saturating_u64(each as f64 * share);
            writer.script.access(object.part(from, from + part), hot, RANDOM);
            writer.script.access(*object, each - hot, RANDOM);
        }
        writer.step();
    }
}

pub(super) fn bursts(writer: &mut Writer) {
    let scene = Scene::new(writer);
    let (long, pause) = (writer.pick(&[4, 10, 20]), writer.pick(&[5, 20, 60]));
    let (mut left, mut object) = (0, scene.objects[0]);
    for _ in 0..writer.steps {
        if left == 0 && writer.chance.below(pause) == 0 {
            left = long;
            object = scene.objects[index(writer.chance.below(scene.objects.len() as u64))];
        }
        if left > 0 {
            left -= 1;
            writer.script.access(object, writer.misses / 2, scene.manner);
        }
        scene.step(writer, 0);
    }
}

pub(super) fn mixed(writer: &mut Writer) {
    let list = writer.pick(&[4 * MIB, 8 * MIB, 12 * MIB]);
    let arrays = writer.objects(writer.set.clone().below(3) + 2, 12 * MIB);
    let list = writer.filled(list, 2);
    let share = writer.pick(&[0.05, 0.15, 0.3]);
    for step in 0..writer.steps {
        let chased = saturating_u64(writer.misses as f64 * share);
        writer.script.access(list, chased, CHASED);
        let array = arrays[index(step) % arrays.len()];
        writer.script.access(array, writer.misses - chased, STENCIL);
        writer.step();
    }
}

pub(super) fn phases(writer: &mut Writer) {
    let scene = Scene::new(writer);
    let (count, long) = (writer.pick(&[3, 6, 12]), writer.pick(&[10, 20, 60]));
    let starts: Vec<usize> =
        (0..count).map(|_| index(writer.chance.below(scene.objects.len() as u64))).collect();
    for step in 0..writer.steps {
        let phase = step / long % count;
        if step.is_multiple_of(long) {
            writer.script.phase(phase + 1);
        }
        scene.step(writer, starts[index(phase)]);
    }
}

pub(super) fn multigrid(writer: &mut Writer) {
    let finest = writer.pick(&[16 * MIB, 24 * MIB, 32 * MIB]);
    let grids = |writer: &mut Writer, site| -> Vec<Piece> {
        (0..4).map(|level| writer.filled((finest >> (3 * level)).max(64 * KIB), site)).collect()
    };
    let (values, residuals) = (grids(writer, 1), grids(writer, 2));
    let sweeps = writer.pick(&[1, 2, 4]);
    // Down and up; coarser levels take less time.
    let levels = [0, 1, 2, 3, 2, 1];
    for cycle in 0..writer.steps / 12 {
        for level in levels {
            for _ in 0..sweeps {
                let misses = (writer.misses * 2 / sweeps) >> level;
                writer.script.access(values[level], misses.max(1), STENCIL);
                writer.script.access(residuals[level], misses.max(1) / 2, SEQUENTIAL);
                writer.script.work(((writer.step_ns * 2 / sweeps) >> level).max(1));
            }
        }
        if cycle.is_multiple_of(16) {
            writer.script.phase(cycle / 16 + 1);
        }
    }
}
