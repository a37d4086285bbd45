//! `tiercel replay` as a user runs it: the same figures twice, and what it refuses.

use serde_json::Value;
use std::process::{Command, Output};

fn replay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tiercel")).arg("replay").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = replay(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_seed_others() {
    let args = ["--streams", "hot/0", "--seeds", "2", "--fast", "25%", "--json", "--seed"];
    let with_seed = |seed| json(&[args.as_slice(), &[seed]].concat());
    let first = with_seed("1");
    assert_eq!(first, with_seed("1"));
    assert_ne!(first["comparisons"], with_seed("2")["comparisons"]);
    let one = &first["comparisons"][0];
    let names: Vec<&str> = one["results"].as_array().unwrap().iter().map(name_of).collect();
    assert_eq!(names, ["tiercel", "never"]);
    let ns = |key: &str| one[key].as_f64().unwrap();
    let bound = one["paid"]["bound_ns"].as_f64().unwrap();
    assert!(ns("all_fast_ns") <= bound && bound <= ns("first_touch_ns"), "{one}");
    assert!(ns("first_touch_ns") <= ns("all_slow_ns"), "{one}");
}

fn name_of(result: &Value) -> &str {
    result["name"].as_str().unwrap()
}

#[test]
fn a_kind_has_its_streams_and_a_table_its_summary() {
    let args = ["--streams", "uniform", "--seeds", "1", "--fast", "50%", "--policy", "never"];
    let output = replay(&args);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!((0..8).all(|set| text.contains(&format!("uniform/{set}"))), "{text}");
    assert!(text.contains("held out") && text.contains("tuned"), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("seed 1"));
}

#[test]
fn what_it_does_not_know_is_refused() {
    for (args, want) in [
        (vec!["--streams", "sideways"], "no stream is called sideways"),
        (vec!["--policy", "magic"], "no policy is called magic"),
        (vec!["--policy", "config"], "--config FILE"),
        (vec!["--machine", "grace", "--streams", "hot/0"], "one memory tier"),
        (vec!["--period", "0"], "above 0"),
        (vec!["--fast", "0%"], "share of the peak"),
        (vec!["--seeds", "0"], "0"),
        (vec!["--profile", "/no/such.profile"], "/no/such.profile"),
        (vec!["--lasts", "1,2", "--profile", "a"], "2 times for 1 profiles"),
        (vec!["--lasts", "0", "--profile", "a"], "seconds above 0"),
    ] {
        let output = replay(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(want), "{args:?}: {error}");
    }
}

#[test]
fn energies_are_shown_where_they_are_known() {
    let policies = "oam,oam-unmoved,joint-edp,clock-dwf,2pp,all-fast";
    let args =
        ["--streams", "hot/0", "--fast", "50%", "--seeds", "1", "--machine", "pcm", "--policy"];
    let all = json(&[&args[..], &[policies, "--json", "--static-power", "1,x8"]].concat());
    let rows = all["energy"].as_array().unwrap();
    assert_eq!(rows.len(), 7, "{all}");
    for row in rows {
        let ratios = row["energies"].as_array().unwrap();
        assert_eq!(ratios.len(), 2);
        let of = |ratio: &Value, key: &str| ratio[key].as_f64().unwrap();
        for ratio in ratios {
            let product = of(ratio, "joules") * row["time"].as_f64().unwrap();
            assert!((of(ratio, "edp") - product).abs() < 1e-9, "of one stream: {row}");
        }
    }
    let (bound, policies) = rows.split_last().unwrap();
    assert_eq!((&bound["policy"], &bound["moved"]), (&"bound".into(), &Value::Null));
    let edp = |row: &Value| row["energies"][0]["edp"].as_f64().unwrap();
    let all_fast = policies.last().unwrap();
    for row in policies.iter().filter(|row| *row != all_fast) {
        assert!(edp(row) >= edp(bound), "{row} {bound}");
    }
    assert_eq!((&all_fast["fast_share"], &all_fast["moved"]), (&1.0.into(), &0.0.into()));
    let text = |machine: &str| {
        let output = replay(&["--streams", "hot/0", "--seeds", "1", "--machine", machine]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(text("pcm").contains("EDP x64"));
    assert!(!text("cascadelake-optane").contains("EDP"), "its energies are unknown");
    let refused = replay(&["--static-power", "-1"]);
    assert!(!refused.status.success());
}
