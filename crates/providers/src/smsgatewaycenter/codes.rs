//! What this provider's answer codes mean. The built-in table holds only codes with a source (provider-contract, section 3);
//! an account adds its own. It refuses to guess: a code on no list has no meaning here.

use std::collections::BTreeMap;

use sendonce_core::config::Codes;

/// The meaning of a listed code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Accepted,
    Throttled,
    AccountRefused,
    MessageRefused,
}

const ACCEPTED: [&str; 2] = [
    "200", // success
    "300", // one-time password generated
];
const MESSAGE: [&str; 3] = [
    "147", // a flag that is not exactly true or false
    "171", // text and msgType do not match
    "188", // the text does not match its DLT template
];
const ACCOUNT: [&str; 5] = [
    "213", // userid required
    "214", // password required
    "215", // API key required
    "216", // invalid credentials
    "253", // no API key exists
];

/// An account lists a code that cannot mean what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCode {
    #[error("code `{0}` means accepted and cannot be listed as a refusal")]
    Accepted(String),
    #[error("code `{0}` is listed with two meanings")]
    Twice(String),
}

/// Code to meaning.
#[derive(Debug, Clone)]
pub(super) struct CodeTable(BTreeMap<String, Meaning>);

impl CodeTable {
    /// The built-in table under the account's own lists, which win over it.
    pub(super) fn new(extra: &Codes) -> Result<Self, BadCode> {
        let mut listed = BTreeMap::new();
        let lists = [
            (&extra.throttle, Meaning::Throttled),
            (&extra.account, Meaning::AccountRefused),
            (&extra.message, Meaning::MessageRefused),
        ];
        for (codes, meaning) in lists {
            for code in codes.iter().map(|code| code.trim()) {
                if ACCEPTED.contains(&code) {
                    return Err(BadCode::Accepted(code.to_owned()));
                }
                if listed.insert(code.to_owned(), meaning).is_some_and(|before| before != meaning) {
                    return Err(BadCode::Twice(code.to_owned()));
                }
            }
        }
        let built_in = ACCEPTED.map(|code| (code, Meaning::Accepted)).into_iter();
        let built_in = built_in.chain(MESSAGE.map(|code| (code, Meaning::MessageRefused)));
        for (code, meaning) in built_in.chain(ACCOUNT.map(|code| (code, Meaning::AccountRefused))) {
            listed.entry(code.to_owned()).or_insert(meaning);
        }
        Ok(Self(listed))
    }

    /// `None` for a code on no list.
    pub(super) fn meaning(&self, code: &str) -> Option<Meaning> {
        self.0.get(code).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table() {
        let table = CodeTable::new(&Codes::default()).unwrap();
        for (codes, meaning) in [
            (&["200", "300"][..], Some(Meaning::Accepted)),
            (&["147", "171", "188"], Some(Meaning::MessageRefused)),
            (&["213", "214", "215", "216", "253"], Some(Meaning::AccountRefused)),
            (&["302", "900", "999", "", "0", "2000"], None),
        ] {
            for code in codes {
                assert_eq!(table.meaning(code), meaning, "{code}");
            }
        }
    }

    #[test]
    fn an_account_adds_codes_and_may_overrule_a_refusal() {
        let extra = Codes {
            throttle: vec!["429".into()],
            account: vec![" 302 ".into(), "188".into()],
            message: vec!["777".into()],
        };
        let table = CodeTable::new(&extra).unwrap();
        assert_eq!(table.meaning("429"), Some(Meaning::Throttled));
        assert_eq!(table.meaning("302"), Some(Meaning::AccountRefused));
        assert_eq!(table.meaning("188"), Some(Meaning::AccountRefused));
        assert_eq!(table.meaning("777"), Some(Meaning::MessageRefused));
    }

    #[test]
    fn an_acceptance_cannot_be_listed_as_a_refusal_nor_a_code_twice() {
        let accepted = Codes { throttle: vec!["200".into()], ..Codes::default() };
        assert_eq!(CodeTable::new(&accepted).unwrap_err(), BadCode::Accepted("200".into()));
        let twice = Codes { throttle: vec!["500".into()], message: vec!["500".into()], ..Codes::default() };
        assert_eq!(CodeTable::new(&twice).unwrap_err(), BadCode::Twice("500".into()));
    }
}
