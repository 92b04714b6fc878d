//! Random draws and provider ids. Ids come from the ledger's sequence number through a bijection, so they are unique
//! across restarts without a table; a salt keeps two simulators with fresh ledgers from issuing the same ones.

/// splitmix64: a seed gives one sequence of faults, so that a run can be repeated.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// True with probability `rate`; a rate of zero draws nothing, so unused knobs do not shift the sequence.
    pub fn hit(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.unit() < rate
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `0..=max`.
    pub fn up_to(&mut self, max: u64) -> u64 {
        if max == 0 { 0 } else { self.next() % (max + 1) }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Recipients of one request that still get ids of their own.
const SLOTS: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub struct Ids {
    pub salt: u64,
}

impl Ids {
    /// 19 digits, the first of them not zero.
    pub fn transaction(self, seq: u64, attempt: u64) -> String {
        let span = 9_000_000_000_000_000_000;
        (1_000_000_000_000_000_000 + self.raw(seq, attempt) % span).to_string()
    }

    /// 19 digits that start with three zeros: a client that reads ids as numbers loses them.
    pub fn leading_zeros(self, seq: u64, attempt: u64) -> String {
        format!("000{:016}", self.raw(seq, attempt) % 10_000_000_000_000_000)
    }

    /// The legacy documents show a UUID.
    pub fn uuid(self, seq: u64, attempt: u64) -> String {
        let (high, low) = (self.raw(seq, attempt), mix(self.raw(seq, attempt)));
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0x0fff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", 0x8000 | (low >> 50), low & 0xffff_ffff_ffff)
    }

    /// 15 alphanumeric characters: 11 hold a bijection of (sequence, slot), 4 are decoration.
    pub fn message(self, seq: u64, slot: usize) -> String {
        let raw = self.raw(seq, slot as u64);
        let mut id = base62(mix(raw), 4);
        id.push_str(&base62(raw, 11));
        id
    }

    fn raw(self, seq: u64, slot: u64) -> u64 {
        mix((seq * SLOTS + slot).wrapping_mul(GOLDEN) ^ self.salt)
    }
}

fn base62(mut value: u64, width: usize) -> String {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    (0..width)
        .map(|_| {
            let digit = (value % 62) as usize;
            value /= 62;
            char::from(ALPHABET[digit])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn contract_2_ids_have_the_provider_shapes_and_do_not_repeat() {
        let ids = Ids { salt: 42 };
        let mut seen = HashSet::new();
        for seq in 1..2_000 {
            let txn = ids.transaction(seq, 0);
            assert_eq!(txn.len(), 19);
            assert!(txn.bytes().all(|b| b.is_ascii_digit()) && !txn.starts_with('0'));
            assert!(ids.leading_zeros(seq, 0).starts_with("000") && ids.leading_zeros(seq, 0).len() == 19);
            assert_eq!(ids.uuid(seq, 0).len(), 36);
            for slot in 0..3 {
                let message = ids.message(seq, slot);
                assert!(message.len() == 15 && message.bytes().all(|b| b.is_ascii_alphanumeric()));
                assert!(seen.insert(message));
            }
            assert!(seen.insert(txn));
        }
    }
}
