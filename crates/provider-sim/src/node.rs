//! An answer as an ordered tree, rendered as plain text, JSON or XML. Key spelling and order are the contract's, so no
//! struct derives them: some keys hold spaces and capitals.

use serde::{
    Deserialize, Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Text(String),
    Number(u64),
    Object(Vec<(&'static str, Node)>),
    List(Vec<Node>),
}

/// `output=`; the provider's default is plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    Plain,
    Json,
    Xml,
}

impl Output {
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("json") => Self::Json,
            Some("xml") => Self::Xml,
            Some(_) | None => Self::Plain,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; charset=UTF-8",
            Self::Json => "application/json",
            Self::Xml => "application/xml",
        }
    }
}

impl Node {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A JSON number where asked for and possible without changing the digits; text otherwise.
    pub fn digits(text: &str, as_number: bool) -> Self {
        match text.parse::<u64>() {
            Ok(number) if as_number && number.to_string() == text => Self::Number(number),
            Ok(_) | Err(_) => Self::text(text),
        }
    }

    pub fn render(&self, output: Output) -> String {
        match output {
            Output::Plain => {
                let mut lines = Vec::new();
                self.plain(&mut lines);
                lines.join("\n")
            }
            Output::Json => serde_json::to_string(self).unwrap_or_default(),
            Output::Xml => {
                let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
                match self {
                    Self::Object(fields) if fields.len() == 1 => self.xml(&mut out),
                    Self::Object(_) | Self::List(_) | Self::Text(_) | Self::Number(_) => {
                        out.push_str("<response>");
                        self.xml(&mut out);
                        out.push_str("</response>");
                    }
                }
                out
            }
        }
    }

    /// One line per object: its scalars joined by ` | `, then whatever is nested in it.
    fn plain(&self, lines: &mut Vec<String>) {
        match self {
            Self::Text(text) => lines.push(text.clone()),
            Self::Number(number) => lines.push(number.to_string()),
            Self::List(items) => items.iter().for_each(|item| item.plain(lines)),
            Self::Object(fields) => {
                let scalars: Vec<String> = fields.iter().filter_map(|(_, node)| node.scalar()).collect();
                if !scalars.is_empty() {
                    lines.push(scalars.join(" | "));
                }
                fields.iter().filter(|(_, node)| node.scalar().is_none()).for_each(|(_, node)| node.plain(lines));
            }
        }
    }

    fn scalar(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            Self::Object(_) | Self::List(_) => None,
        }
    }

    fn xml(&self, out: &mut String) {
        match self {
            Self::Text(text) => escape(text, out),
            Self::Number(number) => out.push_str(&number.to_string()),
            Self::List(items) => items.iter().for_each(|item| element("item", item, out)),
            Self::Object(fields) => fields.iter().for_each(|(key, node)| element(&key.replace(' ', "_"), node, out)),
        }
    }
}

fn element(name: &str, node: &Node, out: &mut String) {
    out.push_str(&format!("<{name}>"));
    node.xml(out);
    out.push_str(&format!("</{name}>"));
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            other => out.push(other),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (key, node) in fields {
                    map.serialize_entry(key, node)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Node {
        Node::Object(vec![("status", Node::text("a<b")), ("Submitted Time", Node::Number(7))])
    }

    #[test]
    fn contract_1_three_outputs_of_one_answer() {
        assert_eq!(sample().render(Output::Plain), "a<b | 7");
        assert_eq!(sample().render(Output::Json), r#"{"status":"a<b","Submitted Time":7}"#);
        assert!(sample().render(Output::Xml).ends_with("<Submitted_Time>7</Submitted_Time></response>"));
        assert_eq!(Output::parse(None), Output::Plain);
    }

    #[test]
    fn contract_10_an_id_with_leading_zeros_never_becomes_a_number() {
        assert_eq!(Node::digits("0001", true), Node::text("0001"));
        assert_eq!(Node::digits("6305583318236810379", true), Node::Number(6_305_583_318_236_810_379));
        assert_eq!(Node::digits("200", false), Node::text("200"));
    }
}
