//! What users may write, and the error when it is wrong.
//! In: TOML and words. Out: settings or messages. Knows nothing of decisions.

use expect_test::{Expect, expect};
use tiercel_policy::{Aggregate, Config, Enforce, Gate, Limit, Prioritise, Trigger};

fn check(text: &str, want: Expect) {
    let shown = match toml::from_str::<Config>(text) {
        Ok(config) => match config.check() {
            Ok(()) => format!(
                "{}\n{}\n{}\n{}\n{}",
                config.aggregate, config.prioritise, config.trigger, config.enforce, config.gate
            )
            .replace(',', ", "),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    want.assert_eq(&wrapped(shown.trim_end()));
}

/// Lines of at most 80 columns, for long messages.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for (nth, line) in text.split('\n').enumerate() {
        if nth > 0 {
            lines.push(String::new());
        }
        let words = if line.len() <= 80 { vec![line] } else { line.split(' ').collect() };
        for word in words {
            let last = lines.last_mut().expect("one at least");
            if !last.is_empty() && last.len() + word.len() >= 80 {
                lines.push(word.to_owned());
            } else {
                *last += if last.is_empty() { "" } else { " " };
                *last += word;
            }
        }
    }
    lines.join("\n")
}

#[test]
fn the_defaults_are_the_papers_constants() {
    check(
        "",
        expect![[r#"
            ewma:alpha=0.1
            cpb
            time:first=1, ticks=1
            fill:follow_births=true, percent=90
            shadow:bytes_per_s=1073741824, loss=0.01, move_ns_per_byte=0.7"#]],
    );
    let config = Config::mat();
    assert_eq!(config.tick_ms, 2000);
    assert_eq!((config.prioritise, config.gate), (Prioritise::Apb, Gate::None));
    let shown = |trigger: &str| trigger.parse::<Trigger>().expect("good").to_string();
    assert_eq!(shown("llcmpi"), "llcmpi:intervals=10,threshold=2.0");
    assert_eq!(shown("allocation"), "allocation:bytes=1073741824");
}

#[test]
fn words_and_tables_mean_the_same() {
    check(
        r#"
        trigger = "allocation"
        prioritise = "lru"
        gate = "none"
        enforce = { fill = { percent = 80 } }
        aggregate = { ewma = {} }
        "#,
        expect![[r#"
            ewma:alpha=0.1
            lru
            allocation:bytes=1073741824
            fill:follow_births=true, percent=80
            none"#]],
    );
    check(
        r#"
        [trigger.allocation]
        bytes = "512 MiB"
        [prioritise]
        expression = "(reads*2+writes*10)/bytes"
        [gate.shadow]
        bytes_per_s = 1000
        "#,
        expect![[r#"
            ewma:alpha=0.1
            expression:(reads*2+writes*10)/bytes
            allocation:bytes=536870912
            fill:follow_births=true, percent=90
            shadow:bytes_per_s=1000, loss=0.01, move_ns_per_byte=0.7"#]],
    );
}

#[test]
fn mistakes_are_refused_with_their_place() {
    check(
        "tick = 5",
        expect![[r#"
            TOML parse error at line 1, column 1
              |
            1 | tick = 5
              | ^^^^
            unknown field `tick`, expected one of `tick_ms`, `first_tick_ms`, `aggregate`,
            `prioritise`, `trigger`, `enforce`, `gate`"#]],
    );
    check(
        "trigger = { time = { tick = 3 } }",
        expect![[r#"
            TOML parse error at line 1, column 22
              |
            1 | trigger = { time = { tick = 3 } }
              |                      ^^^^
            unknown field `tick`, expected `ticks` or `first`"#]],
    );
    check(
        "prioritise = \"hot\"",
        expect![[r#"
            TOML parse error at line 1, column 14
              |
            1 | prioritise = "hot"
              |              ^^^^^
            prioritise `hot`: unknown variant `hot`, expected one of `fifo`, `lru`, `apb`,
            `cpb`, `first-come`, `expression`"#]],
    );
    check(
        "prioritise = { expression = \"reads / byte\" }",
        expect![[r#"
            TOML parse error at line 1, column 29
              |
            1 | prioritise = { expression = "reads / byte" }
              |                             ^^^^^^^^^^^^^^
            expression `reads / byte`, at character 9: no variable `byte`; there are
            accesses, reads, writes, bytes, size, age_s, lifetime_s, idle_s, latency_ns,
            cost, and functions min, max, log, sqrt"#]],
    );
    check(
        "trigger = { allocation = { bytes = \"much\" } }",
        expect![[r#"
            TOML parse error at line 1, column 36
              |
            1 | trigger = { allocation = { bytes = "much" } }
              |                                    ^^^^^^
            "much" is not a size; write for example "64 MiB", "16 GiB" or a number of bytes"#]],
    );
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    check(
        "enforce = { fill = { percent = 101 } }",
        expect!["policy: enforce.fill.percent = 101: must be from 1 to 100"],
    );
    check(
        "aggregate = { ewma = { alpha = 0 } }",
        expect!["policy: aggregate.ewma.alpha = 0: must be above 0 and at most 1"],
    );
    check(
        "trigger = { time = { ticks = 0 } }",
        expect!["policy: trigger.time.ticks = 0: must be at least 1"],
    );
    check(
        "gate = { shadow = { loss = 1.5 } }",
        expect!["policy: gate.shadow.loss = 1.5: must be from 0 to 1"],
    );
    check(
        "gate = { benefit = { horizon_s = 30 } }",
        expect![[r#"
            TOML parse error at line 1, column 10
              |
            1 | gate = { benefit = { horizon_s = 30 } }
              |          ^^^^^^^
            unknown variant `benefit`, expected `none` or `shadow`"#]],
    );
}

#[test]
fn the_command_line_has_the_same_grammar() {
    let shown = |result: Result<Trigger, _>| match result {
        Ok(trigger) => trigger.to_string(),
        Err(error) => wrapped(&tiercel_policy::RoutineError::to_string(&error)),
    };
    assert_eq!(shown("time:ticks=3".parse()), "time:first=1,ticks=3");
    assert_eq!(shown("llcmpi:threshold=0.5".parse()), "llcmpi:intervals=10,threshold=0.5");
    assert_eq!(shown("allocation:bytes=2GiB".parse()), "allocation:bytes=2147483648");
    expect!["trigger `never:x=1`: never has no options"].assert_eq(&shown("never:x=1".parse()));
    expect!["trigger `time:3`: option `3` is not of the form key=value"]
        .assert_eq(&shown("time:3".parse()));
    expect!["trigger `time:tick=3`: unknown field `tick`, expected `ticks` or `first`"]
        .assert_eq(&shown("time:tick=3".parse()));
    expect![[r#"
        trigger `often`: unknown variant `often`, expected one of `time`, `llcmpi`,
        `allocation`, `never`"#]]
    .assert_eq(&shown("often".parse()));
}

#[test]
fn what_is_shown_can_be_read() {
    for text in ["", "prioritise = { expression = \"log(accesses) / size\" }", "gate = \"none\""] {
        let config: Config = toml::from_str(text).expect("good");
        assert_eq!(config.prioritise.to_string().parse(), Ok(config.prioritise.clone()));
        assert_eq!(config.trigger.to_string().parse(), Ok(config.trigger.clone()));
        assert_eq!(config.aggregate.to_string().parse::<Aggregate>(), Ok(config.aggregate.clone()));
        assert_eq!(config.enforce.to_string().parse::<Enforce>(), Ok(config.enforce.clone()));
        assert_eq!(config.gate.to_string().parse(), Ok(config.gate.clone()));
        let written = toml::to_string(&config).expect("TOML");
        assert_eq!(toml::from_str::<Config>(&written).expect("read back"), config);
    }
}

#[test]
fn limits_are_bytes_or_shares() {
    let limit = |text: &str| text.parse::<Limit>();
    assert_eq!(limit("25%"), Ok(Limit::ShareOfPeak(0.25)));
    assert_eq!(limit("4GiB"), Ok(Limit::Bytes(4 << 30)));
    assert_eq!(limit("all"), Ok(Limit::Capacity));
    for text in ["", "125%", "-1%", "fast", "NaN%"] {
        assert!(limit(text).is_err(), "{text}");
    }
    // 25 was taken for bytes; and 0 as well.
    for text in ["25", "0", " 1.5 "] {
        let error = limit(text).unwrap_err().to_string();
        assert!(error.contains(&format!("a share of the peak is `{}%`", text.trim())), "{error}");
    }
}
