//! The simulator's own segment counter: what the bill counts. Deliberately not the one under test.

/// Encoding that decides the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Gsm7,
    Ucs2,
}

const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
const EXTENSION: &str = "\u{c}^{}\\[~]|€";

/// Septets of one character in GSM 03.38, or `None` where it has no place there.
fn septets(c: char) -> Option<u32> {
    if BASIC.contains(c) { Some(1) } else { EXTENSION.contains(c).then_some(2) }
}

pub fn coding_of(text: &str) -> Coding {
    if text.chars().all(|c| septets(c).is_some()) { Coding::Gsm7 } else { Coding::Ucs2 }
}

/// Parts of `text`: packed greedily, because an escape pair or a surrogate pair never straddles two parts.
pub fn count(text: &str, coding: Coding) -> u32 {
    let (single, part) = match coding {
        Coding::Gsm7 => (160, 153),
        Coding::Ucs2 => (70, 67),
    };
    let width = |c: char| match coding {
        Coding::Gsm7 => septets(c).unwrap_or(1),
        Coding::Ucs2 => u32::from(c.len_utf16() == 2) + 1,
    };
    let total: u32 = text.chars().map(width).sum();
    if total <= single {
        return u32::from(total > 0);
    }
    let mut parts = 1;
    let mut used = 0;
    for c in text.chars() {
        let need = width(c);
        if used + need > part {
            parts += 1;
            used = 0;
        }
        used += need;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contract_11_segments_agree_with_every_vector() {
        let vectors: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../tests/fixtures/segments.json")).unwrap();
        assert!(vectors.len() > 20);
        for vector in vectors {
            let text = vector["text"].as_str().unwrap();
            let id = &vector["id"];
            assert_eq!(u64::from(count(text, coding_of(text))), vector["segments"].as_u64().unwrap(), "{id}");
            let forced = vector["segments_if_forced_ucs2"].as_u64().unwrap();
            assert_eq!(u64::from(count(text, Coding::Ucs2)), forced, "{id} as unicode");
        }
    }
}
