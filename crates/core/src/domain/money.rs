//! What a submission costs: exact decimals, a dated rate card, units fixed at submission (T19). No float comes near it, and
//! a provider's own amounts are another column (T20).

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;

use crate::domain::message::{Channel, Class, Recipient};

/// Digits after the point in `unit_price` and `cost`: `NUMERIC(12,4)`.
pub const SCALE: u32 = 4;

/// One line of the rate card: the price of one unit to numbers that begin with `prefix`, over a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    pub id: i64,
    pub tenant: String,
    pub channel: Channel,
    pub class: Class,
    /// First E.164 digits, without plus; empty for "anywhere".
    pub prefix: String,
    /// Per unit (one recipient, one segment), in `currency`, at most four digits after the point.
    pub unit_price: Decimal,
    /// ISO 4217, three letters.
    pub currency: String,
    /// First instant it holds.
    pub valid_from: DateTime<Utc>,
    /// First instant it no longer holds; `None` while no end is set.
    pub valid_to: Option<DateTime<Utc>>,
}

impl Rate {
    fn holds_at(&self, at: DateTime<Utc>) -> bool {
        self.valid_from <= at && self.valid_to.is_none_or(|end| at < end)
    }
    fn lane(&self) -> (&str, Channel, Class) {
        (&self.tenant, self.channel, self.class)
    }
}

/// All rates, sorted so that a lookup is a few binary searches and no allocation: by lane (tenant, channel, class), then
/// prefix, then the latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RateCard(Vec<Rate>);

impl RateCard {
    /// Takes the table's rows in any order.
    #[must_use]
    pub fn new(mut rates: Vec<Rate>) -> Self {
        rates.sort_by(|a, b| {
            let by_key = a.lane().cmp(&b.lane()).then_with(|| a.prefix.cmp(&b.prefix));
            by_key.then_with(|| (b.valid_from, b.id).cmp(&(a.valid_from, a.id)))
        });
        Self(rates)
    }

    /// The rate that applies: of those that hold at `at`, the longest prefix of the number, then the latest `valid_from`
    /// (then the higher id, so that the answer is always the same one).
    #[must_use]
    pub fn find(
        &self,
        tenant: &str,
        channel: Channel,
        class: Class,
        to: &Recipient,
        at: DateTime<Utc>,
    ) -> Option<&Rate> {
        let lane = (tenant, channel, class);
        let start = self.0.partition_point(|rate| rate.lane() < lane);
        let rates = self.0.get(start..)?;
        let rates = rates.get(..rates.partition_point(|rate| rate.lane() == lane))?;
        let number = to.expose();
        (0..=number.len()).rev().filter_map(|len| number.get(..len)).find_map(|prefix| {
            let first = rates.partition_point(|rate| rate.prefix.as_str() < prefix);
            let mut same = rates.get(first..)?.iter().take_while(|rate| rate.prefix == prefix);
            same.find(|rate| rate.holds_at(at))
        })
    }

    /// The rates, in the card's order.
    #[must_use]
    pub fn rates(&self) -> &[Rate] {
        &self.0
    }
}

impl FromIterator<Rate> for RateCard {
    fn from_iter<I: IntoIterator<Item = Rate>>(rates: I) -> Self {
        Self::new(rates.into_iter().collect())
    }
}

/// Cost of `units` (recipients × segments) at `unit_price`, at scale 4. Exact for a price of at most four digits after the
/// point, as `NUMERIC(12,4)` holds; a finer one is multiplied first and rounded once, half away from zero, as PostgreSQL does.
#[must_use]
pub fn cost(unit_price: Decimal, units: u32) -> Decimal {
    let exact = unit_price.saturating_mul(Decimal::from(units));
    let mut cost = exact.round_dp_with_strategy(SCALE, rust_decimal::RoundingStrategy::MidpointAwayFromZero);
    cost.rescale(SCALE);
    cost
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn day(day: u32) -> DateTime<Utc> {
        Utc.with_ymd_and_hms(2026, 12, day, 0, 0, 0).unwrap()
    }

    fn number(digits: &str) -> Recipient {
        Recipient::from_e164_digits(digits).unwrap()
    }

    fn rate(id: i64, prefix: &str, price: &str, from: u32, to: Option<u32>) -> Rate {
        Rate {
            id,
            tenant: "acme".into(),
            channel: Channel::Sms,
            class: Class::Transactional,
            prefix: prefix.into(),
            unit_price: price.parse().unwrap(),
            currency: "INR".into(),
            valid_from: day(from),
            valid_to: to.map(day),
        }
    }

    fn found(card: &RateCard, to: &str, on: u32) -> Option<i64> {
        card.find("acme", Channel::Sms, Class::Transactional, &number(to), day(on)).map(|rate| rate.id)
    }

    #[test]
    fn t19_costs_are_exact_at_scale_four() {
        let table = [
            ("0.1", 3, "0.3000"),
            ("0.1500", 7, "1.0500"),
            ("0.0001", 1, "0.0001"),
            ("0.1234", 10_000, "1234.0000"),
            ("0", 5, "0.0000"),
            ("1", 0, "0.0000"),
            ("99999999.9999", 1, "99999999.9999"),
            ("0.3333", 3, "0.9999"),
            // Finer than the column: one rounding, after the product.
            ("0.00005", 1, "0.0001"),
            ("0.00004", 1, "0.0000"),
            ("0.00004", 2, "0.0001"),
            ("0.33335", 3, "1.0001"),
        ];
        for (price, units, expected) in table {
            assert_eq!(cost(price.parse().unwrap(), units).to_string(), expected, "{price} x {units}");
        }
        // No overflow panics.
        assert_eq!(cost(Decimal::MAX, u32::MAX), Decimal::MAX);
    }

    #[test]
    fn t19_the_longest_prefix_wins_over_the_latest_date() {
        let card = RateCard::new(vec![
            rate(1, "", "9", 1, None),
            rate(2, "91", "0.15", 1, None),
            rate(3, "9198", "0.20", 1, None),
            rate(4, "91", "0.16", 10, None),
            rate(5, "1", "0.70", 1, None),
        ]);
        assert_eq!(found(&card, "919876543210", 20), Some(3));
        assert_eq!(found(&card, "917012345678", 20), Some(4));
        assert_eq!(found(&card, "917012345678", 9), Some(2));
        assert_eq!(found(&card, "14155550123", 20), Some(5));
        assert_eq!(found(&card, "447911123456", 20), Some(1));
    }

    #[test]
    fn t19_a_rate_holds_from_its_first_instant_up_to_its_end() {
        let card = RateCard::new(vec![rate(1, "91", "1", 5, Some(10)), rate(2, "", "2", 1, Some(12))]);
        let by_day: Vec<_> = [4, 5, 9, 10, 11, 12].map(|on| found(&card, "919876543210", on)).into();
        assert_eq!(by_day, [Some(2), Some(1), Some(1), Some(2), Some(2), None]);
    }

    #[test]
    fn t19_lanes_do_not_mix_and_ties_are_settled() {
        let other_tenant = Rate { tenant: "acme2".into(), ..rate(1, "91", "1", 1, None) };
        let other_channel = Rate { channel: Channel::Whatsapp, ..rate(2, "91", "1", 1, None) };
        let other_class = Rate { class: Class::Otp, ..rate(3, "91", "1", 1, None) };
        let card: RateCard = [other_tenant, other_channel, other_class].into_iter().collect();
        assert_eq!(found(&card, "919876543210", 5), None);
        assert_eq!(
            card.find("acme2", Channel::Sms, Class::Transactional, &number("919876543210"), day(5)).unwrap().id,
            1
        );
        assert_eq!(
            card.find("acme", Channel::Whatsapp, Class::Transactional, &number("919876543210"), day(5)).unwrap().id,
            2
        );
        let tied =
            RateCard::new(vec![rate(8, "91", "1", 1, None), rate(9, "91", "2", 1, None), rate(7, "91", "3", 1, None)]);
        assert_eq!(found(&tied, "919876543210", 5), Some(9));
        assert_eq!(found(&RateCard::default(), "919876543210", 5), None);
    }

    fn lines() -> impl Strategy<Value = Vec<Rate>> {
        let line = ("[12]{0,5}", 1u32..20, proptest::option::of(1u32..25), 0usize..3, 0usize..2);
        proptest::collection::vec(line, 0..40).prop_map(|lines| {
            let mut id = 0;
            lines
                .into_iter()
                .map(|(prefix, from, to, class, tenant)| {
                    id += 1;
                    let tenant = ["acme", "acme2"][tenant].to_owned();
                    Rate { class: Class::ALL[class], tenant, ..rate(id, &prefix, "1", from, to) }
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn t19_the_sorted_card_finds_what_a_scan_finds(lines in lines(), to in "[12]{5,8}", on in 1u32..25) {
            let scan = lines
                .iter()
                .filter(|r| r.lane() == ("acme", Channel::Sms, Class::Transactional))
                .filter(|r| to.starts_with(&r.prefix) && r.valid_from <= day(on) && r.valid_to.is_none_or(|end| day(on) < end))
                .max_by_key(|r| (r.prefix.len(), r.valid_from, r.id))
                .map(|r| r.id);
            prop_assert_eq!(found(&RateCard::new(lines), &to, on), scan);
        }

        #[test]
        fn t19_costs_add_up(price in 0i64..1_000_000_000_000, a in 0u32..100_000, b in 0u32..100_000) {
            let price = Decimal::new(price, SCALE);
            prop_assert_eq!(cost(price, a) + cost(price, b), cost(price, a + b));
            prop_assert_eq!(cost(price, a).scale(), SCALE);
        }
    }
}
