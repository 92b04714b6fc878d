//! JSON without what two readers could understand differently: no duplicate keys, no NUL, no number beyond a double, and
//! no nesting deeper than any event needs. Refuses before anything is built from the text; never repeats it (I11).

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Objects and arrays inside each other; an event needs five.
pub(super) const MAX_DEPTH: usize = 32;

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Syntax { line: usize, column: usize },
    TooDeep,
    DuplicateKey,
    Nul,
    NumberOutOfRange,
}

/// Reads the whole text.
pub(super) fn read(text: &str) -> Result<Value, Fault> {
    let fault = Cell::new(None);
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0, fault: &fault }.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| {
        // serde_json refuses 1e400 by itself, as a syntax error; its message names the kind and the place only.
        let range = error.to_string().starts_with("number out of range");
        let other =
            if range { Fault::NumberOutOfRange } else { Fault::Syntax { line: error.line(), column: error.column() } };
        fault.get().unwrap_or(other)
    })
}

/// Builds a value and notes why it stopped.
#[derive(Clone, Copy)]
struct Strict<'f> {
    depth: usize,
    fault: &'f Cell<Option<Fault>>,
}

impl Strict<'_> {
    fn stop<E: serde::de::Error>(self, fault: Fault) -> E {
        self.fault.set(Some(fault));
        E::custom("refused")
    }

    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(self.stop(Fault::TooDeep));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }

    fn text<E: serde::de::Error>(self, text: String) -> Result<String, E> {
        if text.contains('\0') { Err(self.stop(Fault::Nul)) } else { Ok(text) }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| self.stop(Fault::NumberOutOfRange))
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.text(text.to_owned()).map(Value::String)
    }
    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        self.text(text).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let key = self.text(key)?;
            let value = entries.next_value_seed(inner)?;
            if object.insert(key, value).is_some() {
                return Err(self.stop(Fault::DuplicateKey));
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f17_what_readers_could_understand_differently_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        let table = [
            (nested(MAX_DEPTH + 1), Fault::TooDeep),
            (nested(500_000), Fault::TooDeep),
            ("{\"a\":".repeat(100_000), Fault::TooDeep),
            (r#"{"a":1,"a":1}"#.to_owned(), Fault::DuplicateKey),
            (r#"{"b":{"a":1,"\u0061":2}}"#.to_owned(), Fault::DuplicateKey),
            (r#"["x\u0000y"]"#.to_owned(), Fault::Nul),
            (r#"{"x\u0000":1}"#.to_owned(), Fault::Nul),
            ("1e400".to_owned(), Fault::NumberOutOfRange),
            ("[-1e400]".to_owned(), Fault::NumberOutOfRange),
            ("{}{}".to_owned(), Fault::Syntax { line: 1, column: 3 }),
            ("[1,]".to_owned(), Fault::Syntax { line: 1, column: 4 }),
            ("[\n01]".to_owned(), Fault::Syntax { line: 2, column: 2 }),
            (String::new(), Fault::Syntax { line: 1, column: 0 }),
        ];
        for (text, fault) in table {
            assert_eq!(read(&text), Err(fault), "{}", text.chars().take(40).collect::<String>());
        }
        for bad in ["NaN", "[Infinity]", r#"["\ud800"]"#, "\"a\u{1}\"", "'a'", "{a:1}", "[1] // x", "tru"] {
            assert!(matches!(read(bad), Err(Fault::Syntax { .. })), "{bad}");
        }
    }

    #[test]
    fn f17_what_it_takes_it_takes_as_serde_json_does() {
        for text in [
            r#"{"a":[1,-2,3.5,null,true,"é\n\ud83d\ude00"],"b":{}}"#,
            "18446744073709551615",
            "123456789012345678901234567890",
            "-0",
            " [ ] ",
        ] {
            assert_eq!(read(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }
}
