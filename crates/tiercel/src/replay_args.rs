//! Arguments of `tiercel replay`.
//! In: the command line. Out: plain data. Knows nothing of streams.

use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::time::Duration;
use tiercel_machine::number::saturating_u64;
use tiercel_replay::Model;

/// Arguments of `tiercel replay`.
#[derive(ClapArgs, Debug)]
pub struct ReplayArgs {
    /// Which made streams: all, tuned, held-out, a kind (moving) or a stream (moving/2)
    #[arg(long, value_name = "STREAM", value_delimiter = ',')]
    pub streams: Vec<String>,
    /// Replay a recorded profile as well; repeatable
    #[arg(long, value_name = "PROFILE")]
    pub profile: Vec<PathBuf>,
    /// How long each --profile's run takes without what recorded it, in their order, seconds of CPU
    /// time; without: as long as it was recorded
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = seconds)]
    pub lasts: Vec<Duration>,
    /// Who places memory: tiercel, never, mat, mat:PRIORITISE:TRIGGER, oam, oam-unmoved, joint,
    /// joint-edp, interleave, clock-dwf (-16, -forgets), 2pp, all-fast, or config (with --config)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "tiercel,never")]
    pub policy: Vec<String>,
    /// Configuration file whose policy `config` is
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The modelled machine: a description's file, or a built-in name
    #[arg(long, value_name = "FILE|NAME", default_value = "cascadelake-optane")]
    pub machine: String,
    /// Sizes of fast memory, shares of each stream's peak
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "12.5%,25%,50%")]
    #[arg(value_parser = per_mille)]
    pub fast: Vec<u64>,
    /// Runs of each policy, with seeds of their own
    #[arg(long, value_name = "RUNS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// The first seed, of streams and of runs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Accesses for each sample
    #[arg(long, value_name = "ACCESSES", default_value_t = Model::default().period)]
    pub period: u32,
    /// See the gap between the memories so many times too large
    #[arg(long, value_name = "TIMES", default_value_t = 1.0)]
    pub scale: f64,
    /// Show energies with so many times the static power of the machine's description
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_value = "1,8,64")]
    #[arg(value_parser = times)]
    pub static_power: Vec<f64>,
    /// Freed memory goes back to the kernel at once; by default as glibc does it
    #[arg(long)]
    pub freed_goes_back: bool,
    /// Rows of the table, worst first
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    pub rows: usize,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

/// `12.5%` as thousandths.
fn per_mille(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: want a share of the peak, as 12.5%");
    let percent = text.trim().strip_suffix('%').ok_or_else(wrong)?;
    let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
    if !(0.1..=100.0).contains(&percent) {
        return Err(wrong());
    }
    Ok(saturating_u64((percent * 10.0).round()))
}

/// Seconds above 0, as `0.46` or `0.46s`.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().trim_end_matches('s').parse().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_sound = |duration: &Duration| !duration.is_zero();
    duration.filter(is_sound).ok_or(format!("`{text}`: want seconds above 0, as 0.46"))
}

/// A factor from 0 on, as `8` or `x8`.
fn times(text: &str) -> Result<f64, String> {
    let factor = text.trim().trim_start_matches('x').parse().unwrap_or(f64::NAN);
    let is_sound = (0.0..=1e6).contains(&factor);
    is_sound.then_some(factor).ok_or(format!("`{text}`: want a factor from 0 on, as 8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_from_0_on() {
        assert_eq!((times("x8"), times("0")), (Ok(8.0), Ok(0.0)));
        for wrong in ["-1", "x", "", "nan"] {
            assert!(times(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_above_0() {
        assert_eq!(seconds("0.46"), Ok(Duration::from_millis(460)));
        assert_eq!(seconds("2s"), Ok(Duration::from_secs(2)));
        for wrong in ["0", "-1", "s", "", "inf", "1m"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_thousandths_of_the_peak() {
        assert_eq!(per_mille("12.5%"), Ok(125));
        assert_eq!(per_mille("100%"), Ok(1000));
        for wrong in ["12.5", "0%", "101%", "x%", ""] {
            assert!(per_mille(wrong).is_err(), "{wrong}");
        }
    }
}
