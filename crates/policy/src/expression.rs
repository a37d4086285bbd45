//! The user's own priority: a small arithmetic language over what is known of an extent.
//! In: a text such as `(reads * 2 + writes * 10) / bytes`. Out: an [`Expression`] that gives
//! numbers. Knows nothing of extents: its caller supplies the variables.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = power (("*" | "/") power)*
//! power   = unary ("^" power)?
//! unary   = "-" unary | number | variable | function "(" sum ("," sum)* ")" | "(" sum ")"
//! ```
//! Compiled to postfix once; a number takes a few nanoseconds. No library: those that are kept and
//! freely licensed evaluate trees of boxed values, and this is 200 lines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Deepest nesting, and so the size of the evaluation stack.
const DEPTH_MAX: usize = 32;
/// Longest text, bytes.
const TEXT_MAX: usize = 1024;

/// What an expression can name, with units.
pub const VARIABLES: [(&str, &str); 10] = [
    ("accesses", "reads and writes per second, averaged (MAT Eq. 1)"),
    ("reads", "reads per second, averaged"),
    ("writes", "writes per second, averaged"),
    ("bytes", "bytes the extent takes in memory"),
    ("size", "bytes of its address range"),
    ("age_s", "seconds since its object was born"),
    ("lifetime_s", "seconds that objects of its site lived, mean; its age where it is older"),
    ("idle_s", "seconds since an access was last seen; its age if none was"),
    ("latency_ns", "mean latency of its accesses, as sampled or assumed"),
    ("cost", "stall time, nanoseconds per second: accesses x latency / 4"),
];

/// Values of [`VARIABLES`], in their order.
pub(crate) type Values = [f32; VARIABLES.len()];

/// A compiled expression. Equal when written alike.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    steps: Vec<Step>,
}

/// A text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expression `{text}`, at character {}: {what}", place + 1)]
pub struct ExpressionError {
    /// What was written.
    pub text: String,
    /// Where it goes wrong, bytes from the start.
    pub place: usize,
    /// What was found and what is wanted.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Number(f32),
    Variable(usize),
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
    Min,
    Max,
    Log,
    Sqrt,
}

const FUNCTIONS: [(&str, usize, Step); 4] =
    [("min", 2, Step::Min), ("max", 2, Step::Max), ("log", 1, Step::Log), ("sqrt", 1, Step::Sqrt)];

impl Expression {
    /// Its value, which need not be finite.
    pub(crate) fn value(&self, values: &Values) -> f32 {
        let mut stack = [0f32; DEPTH_MAX + 1];
        let mut top = 0usize;
        for step in &self.steps {
            let (a, b) = (stack[top.saturating_sub(1)], stack[top]);
            let (arity, result) = match *step {
                Step::Number(number) => (0, number),
                Step::Variable(index) => (0, values[index]),
                Step::Negate => (1, -b),
                Step::Log => (1, b.ln()),
                Step::Sqrt => (1, b.sqrt()),
                Step::Add => (2, a + b),
                Step::Subtract => (2, a - b),
                Step::Multiply => (2, a * b),
                Step::Divide => (2, a / b),
                Step::Power => (2, a.powf(b)),
                Step::Min => (2, a.min(b)),
                Step::Max => (2, a.max(b)),
            };
            // The parser keeps the depth within the stack.
            top = top + 1 - arity;
            stack[top] = result;
        }
        stack[top]
    }
}

impl FromStr for Expression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Expression, ExpressionError> {
        let mut parser = Parser { text, at: 0, steps: Vec::new(), depth: 0 };
        if text.len() > TEXT_MAX {
            return Err(parser.error(TEXT_MAX, format!("longer than {TEXT_MAX} bytes")));
        }
        parser.binary(0)?;
        match parser.peek() {
            None => Ok(Expression { text: text.to_owned(), steps: parser.steps }),
            Some(found) => {
                let at = parser.at;
                Err(parser.error(at, format!("want an operator or the end, found `{found}`")))
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    steps: Vec<Step>,
    depth: usize,
}

impl Parser<'_> {
    fn error(&self, place: usize, what: String) -> ExpressionError {
        ExpressionError { text: self.text.to_owned(), place, what }
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, want: char) -> Result<(), ExpressionError> {
        match self.peek() {
            Some(found) if found == want => {
                self.at += want.len_utf8();
                Ok(())
            }
            Some(found) => Err(self.error(self.at, format!("want `{want}`, found `{found}`"))),
            None => Err(self.error(self.at, format!("want `{want}`, found the end"))),
        }
    }

    /// Operators that bind at least as tightly as `tightness`, by climbing precedence.
    fn binary(&mut self, tightness: u8) -> Result<(), ExpressionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(self.at, format!("nested deeper than {DEPTH_MAX}")));
        }
        self.unary()?;
        while let Some((step, binds, right)) = self.peek().and_then(operator) {
            if binds < tightness {
                break;
            }
            self.at += 1;
            self.binary(right)?;
            self.steps.push(step);
        }
        self.depth -= 1;
        Ok(())
    }

    fn unary(&mut self) -> Result<(), ExpressionError> {
        match self.peek() {
            Some('-') => {
                self.at += 1;
                self.binary(POWER)?;
                self.steps.push(Step::Negate);
                Ok(())
            }
            Some('(') => {
                self.at += 1;
                self.binary(0)?;
                self.take(')')
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.name(),
            Some(found) => {
                Err(self.error(self.at, format!("want a number or a name, found `{found}`")))
            }
            None => Err(self.error(self.at, "want a number or a name, found the end".to_owned())),
        }
    }

    fn number(&mut self) -> Result<(), ExpressionError> {
        let rest = &self.text[self.at..];
        let mut end = 0;
        for (at, c) in rest.char_indices() {
            let signs_exponent = matches!(c, '+' | '-') && rest[..at].ends_with(['e', 'E']);
            if !(c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E') || signs_exponent) {
                break;
            }
            end = at + 1;
        }
        let word = &rest[..end];
        let number: f32 =
            word.parse().map_err(|_| self.error(self.at, format!("`{word}` is not a number")))?;
        self.at += end;
        self.steps.push(Step::Number(number));
        Ok(())
    }

    fn name(&mut self) -> Result<(), ExpressionError> {
        let (start, rest) = (self.at, &self.text[self.at..]);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let word = &rest[..end.unwrap_or(rest.len())];
        self.at += word.len();
        if let Some(index) = VARIABLES.iter().position(|(name, _)| *name == word) {
            self.steps.push(Step::Variable(index));
            return Ok(());
        }
        let Some((_, arity, step)) = FUNCTIONS.iter().find(|(name, ..)| *name == word) else {
            let names: Vec<_> = VARIABLES.iter().map(|(name, _)| *name).collect();
            let functions: Vec<_> = FUNCTIONS.iter().map(|(name, ..)| *name).collect();
            let (names, functions) = (names.join(", "), functions.join(", "));
            let what =
                format!("no variable `{word}`; there are {names}, and functions {functions}");
            return Err(self.error(start, what));
        };
        self.take('(')?;
        for argument in 0..*arity {
            if argument > 0 {
                self.take(',')?;
            }
            self.binary(0)?;
        }
        self.take(')')?;
        self.steps.push(*step);
        Ok(())
    }
}

/// How tightly a power binds: more than a product (2) and a sum (1).
const POWER: u8 = 3;

/// The step of an operator, how tightly it binds, and how tightly its right side must bind.
fn operator(c: char) -> Option<(Step, u8, u8)> {
    match c {
        '+' => Some((Step::Add, 1, 2)),
        '-' => Some((Step::Subtract, 1, 2)),
        '*' => Some((Step::Multiply, 2, 3)),
        '/' => Some((Step::Divide, 2, 3)),
        '^' => Some((Step::Power, POWER, POWER)),
        _ => None,
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Expression {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Expression, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const VALUES: Values = [30.0, 20.0, 10.0, 4096.0, 8192.0, 7.0, 9.0, 2.0, 100.0, 3000.0];

    fn check(text: &str, want: Expect) {
        let shown = match text.parse::<Expression>() {
            Ok(expression) => expression.value(&VALUES).to_string(),
            Err(error) => error.to_string(),
        };
        // One clause a line.
        want.assert_eq(&shown.replace(": ", ":\n").replace("; ", ";\n").replace(", and", ",\nand"));
    }

    #[test]
    fn operators_bind_as_in_school() {
        check("1 + 2 * 3", expect!["7"]);
        check("(1 + 2) * 3", expect!["9"]);
        check("10 - 3 - 2", expect!["5"]);
        check("24 / 4 / 2", expect!["3"]);
        check("2 ^ 3 ^ 2", expect!["512"]);
        check("-2 ^ 2", expect!["-4"]);
        check("3 - -2", expect!["5"]);
        check("2 * -3 + 1", expect!["-5"]);
        check("1e3 + 2.5E-1", expect!["1000.25"]);
    }

    #[test]
    fn names_and_functions() {
        check("(reads*2+writes*10)/bytes", expect!["0.034179688"]);
        check("max(reads, writes) + min(age_s, idle_s)", expect!["22"]);
        check("sqrt(size / 2) * 1", expect!["64"]);
        check("log(1) + cost / latency_ns", expect!["30"]);
        check("accesses", expect!["30"]);
        check("1 / 0", expect!["inf"]);
    }

    #[test]
    fn mistakes_name_their_place() {
        check(
            "",
            expect![[r#"
            expression ``, at character 1:
            want a number or a name, found the end"#]],
        );
        check(
            "reads +",
            expect![[r#"
                expression `reads +`, at character 8:
                want a number or a name, found the end"#]],
        );
        check(
            "(reads",
            expect![[r#"
            expression `(reads`, at character 7:
            want `)`, found the end"#]],
        );
        check(
            "reads writes",
            expect![[r#"
                expression `reads writes`, at character 7:
                want an operator or the end, found `w`"#]],
        );
        check(
            "heat / 2",
            expect![[r#"
                expression `heat / 2`, at character 1:
                no variable `heat`;
                there are accesses, reads, writes, bytes, size, age_s, lifetime_s, idle_s, latency_ns, cost,
                and functions min, max, log, sqrt"#]],
        );
        check(
            "min(1)",
            expect![[r#"
            expression `min(1)`, at character 6:
            want `,`, found `)`"#]],
        );
        check(
            "1.2.3",
            expect![[r#"
            expression `1.2.3`, at character 1:
            `1.2.3` is not a number"#]],
        );
        check(
            "2 $ 3",
            expect![[r#"
                expression `2 $ 3`, at character 3:
                want an operator or the end, found `$`"#]],
        );
        check(
            "ä",
            expect![[r#"
            expression `ä`, at character 1:
            want a number or a name, found `ä`"#]],
        );
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(nested(DEPTH_MAX - 1).parse::<Expression>().is_ok());
        assert!(nested(DEPTH_MAX).parse::<Expression>().is_err());
        let right = |depth: usize| format!("{}1", "1 + (".repeat(depth)) + &")".repeat(depth);
        assert!(right(DEPTH_MAX / 2).parse::<Expression>().is_err());
        let deepest = right(DEPTH_MAX / 2 - 1).parse::<Expression>().expect("fits");
        assert_eq!(deepest.value(&VALUES), DEPTH_MAX as f32 / 2.0);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z0-9+*/^(),. -]{0,60}") {
            if let Ok(expression) = text.parse::<Expression>() {
                expression.value(&VALUES);
            }
        }
    }
}
